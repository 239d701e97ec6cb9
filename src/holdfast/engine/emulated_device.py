"""An emulated device: the arithmetic is real and tiny, and every action takes at least the time
that a profile gives it. The rest of that time is slept, so that many workers share a few cores.

Every worker has a *device clock*: when its device would be free. A computation begins when the
device is free and its message is there, and ends its modelled time later; the process then sleeps
until that moment. The clock is the monotonic one of the machine, which all processes on it share,
so a message carries the moment at which the device had it ready, and a reduction begins at the
latest of its members' moments. A process that wakes up a little late does not make the device late:
the next computation begins when the device was free. Only what a process is behind by more than
`CREDIT` of a computation counts, so on a machine that is too busy to keep up steps take longer, and
never less. What a computation took is what the device took, whatever its process waited for.

Links work the same way (`emulated_groups.py`). The workers of a tensor group end a computation
together, with the slowest of them; their traffic is in the profile's times of a tensor degree.
"""

import time
from collections.abc import Callable, Mapping

import torch

from holdfast.data.by_number import stream, word
from holdfast.engine.data import DataSource
from holdfast.engine.emulation import Emulation, LinkSpeeds
from holdfast.engine.measure import Pace
from holdfast.engine.slowdown import Slowdown
from holdfast.engine.tensor_parallel import TensorGroup
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.profile import UnitCost, tensor_factor, unit_cost

CREDIT = 0.25
"""Of a computation's time: how late a process may begin it without the device being late."""


class EmulatedDevice:
    """One worker's device and its links, the same over all epochs."""

    def __init__(
        self,
        emulation: Emulation,
        worker: str,
        data: DataSource,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.emulation, self.worker, self.data = emulation, worker, data
        self.links = LinkSpeeds(emulation)
        self.clock, self._sleep = clock, sleep
        self._factor = emulation.slowness(worker)
        self.slowdown = Slowdown(clock)
        self.free_at = 0.0
        """When its last computation ended, on the device clock."""
        self.ring_free_at = 0.0
        """The same of its reductions, which run one after the other."""

    @property
    def slowness(self) -> float:
        return self._factor * self.slowdown.factor

    def begin(self, seconds: float) -> None:
        """A computation of this length begins: all it needs is there."""
        self.free_at = max(self.free_at, self.clock() - CREDIT * seconds)

    def spend(self, seconds: float) -> float:
        """Sleep until so much more of it is done."""
        self.free_at += seconds
        self.sleep_until(self.free_at)
        return seconds

    def sleep_until(self, moment: float) -> None:
        rest = moment - self.clock()
        if rest > 0:
            self._sleep(rest)

    def wait_for(self, moment: float) -> None:
        """What follows needs something that is there from this moment on."""
        self.free_at = max(self.free_at, moment)


class EmulatedPace(Pace):
    """What a worker's computations take under one plan."""

    def __init__(
        self, device: EmulatedDevice, plan: Plan, groups: Mapping[str, TensorGroup]
    ) -> None:
        """`groups`: by stage."""
        self._groups = groups
        profile, worker = device.emulation.profile, device.worker
        self._device, self._num_units = device, len(plan.units)
        self._costs: dict[int, UnitCost] = {}
        for stage, _ in plan.seats[worker]:
            share = tensor_factor(profile, stage.tensor)
            for number in range(stage.first, stage.stop):
                self._costs[number] = unit_cost(plan.units[number], profile).scaled(share)
        held = HolderMap(plan).num_parameters[worker]
        self._update = profile.optimizer + profile.update * held
        self._work = (1.0, 1.0)
        self._factor = 1.0

    def begin(self, kind: str, units: range, step: int, micro_batch: int) -> None:
        device = self._device
        load = device.data.workload(step, micro_batch)
        emulation = device.emulation
        self._work = (
            emulation.work(load, has_attention=False),
            emulation.work(load, has_attention=True),
        )
        self._factor = device.slowness * self._noise(kind, step, micro_batch)
        action = emulation.profile.action
        device.begin(action + sum(self._seconds(kind, unit) for unit in units))
        device.spend(action)

    def passed(self, kind: str, unit: int) -> float:
        return self._device.spend(self._seconds(kind, unit))

    def _noise(self, kind: str, step: int, micro_batch: int) -> float:
        """By number, so that it is the same in every run. About normal."""
        noise = self._device.emulation.noise
        if not noise:
            return 1.0
        source = stream(0, "emulated", self._device.worker, kind, step, micro_batch)
        total = sum(word(source, n) & 0xFFFFFFFF for n in range(4)) / 2**32
        return 1.0 + noise * (total - 2.0) * 3**0.5

    def end(self, stage: str) -> None:
        group, device = self._groups[stage], self._device
        if group.size > 1:
            moment = torch.tensor([device.free_at], dtype=torch.float64)
            group.all_reduce(moment, "max")
            device.wait_for(float(moment))
            device.sleep_until(device.free_at)

    def updated(self) -> None:
        self._device.begin(self._update)
        self._device.spend(self._update)

    def _seconds(self, kind: str, unit: int) -> float:
        cost = self._costs[unit]
        is_block = 0 < unit < self._num_units - 1
        times = {
            "forward": cost.forward,
            "backward_input": cost.backward_input,
            "backward_weight": cost.backward_weight,
            "backward": cost.backward_input + cost.backward_weight,
        }
        return times[kind] * self._work[is_block] * self._factor
