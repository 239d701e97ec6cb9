"""Measuring: how long every unit and every action takes, and the profile made of it.

On a CPU the clock is read around each call. On a device, events are recorded in the stream and
read at the end of the step, so that measuring waits for nothing.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from statistics import median

import msgspec
import torch
from torch import Tensor

from holdfast.engine.groups import LiveGroup
from holdfast.engine.mesh import Mesh
from holdfast.engine.slowdown import Slowdown
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile, UnitCost

Sample = tuple[str, int]
"""(kind, number): a unit's forward, say."""


KEPT_SAMPLES = 500
"""Of each: the last ones are enough, and runs are long."""


DEVICE_KHZ = 1_500_000
"""Of a device that does not tell."""


def _recent() -> deque[float]:
    return deque(maxlen=KEPT_SAMPLES)


class Pace:
    """What computations take beyond their arithmetic: nothing, unless a device is emulated."""

    def begin(self, kind: str, units: range, step: int, micro_batch: int) -> None:
        """An action: computations of one kind through these units."""

    def passed(self, kind: str, unit: int) -> float | None:
        """One of them is done; what it took, if that is not the time that has passed."""
        return None

    def end(self, stage: str) -> None:
        """The action is done."""

    def updated(self) -> None:
        """The optimizer is done."""


class Stopwatch:
    """Times of the current run, in seconds. Cheap enough to be always on."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._uses_events = device is not None and device.type == "cuda"
        self._open: list[tuple[Sample, torch.cuda.Event, torch.cuda.Event]] = []
        self._begun: dict[str, torch.cuda.Event | float] = {}
        self.samples: dict[Sample, deque[float]] = defaultdict(_recent)
        self._of_step: dict[Sample, list[float]] = defaultdict(list)
        self.spent = 0.0
        """In units, since the start."""
        self.slowdown = Slowdown()
        self._usual: dict[Sample, float] = {}

    def slow_down(self, factor: float, seconds: float = inf) -> None:
        """On purpose, as `Slowdown.begin`. A GPU is kept busy for longer, as a slow one would be,
        by what its computations took so far.
        """
        if self.slowdown.factor == 1.0:
            self._usual = self.medians()
        self.slowdown.begin(factor, seconds)

    @contextmanager
    def unit(self, kind: str, number: int, pace: Pace | None = None) -> Iterator[None]:
        if self._uses_events:
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
            yield
            if (slow := self.slowdown.factor) > 1.0:
                _spin((slow - 1) * self._usual.get((kind, number), 0.0))
            end.record()
            self._open.append(((kind, number), begin, end))
            return
        start = time.perf_counter()
        yield
        if (slow := self.slowdown.factor) > 1.0:
            time.sleep((slow - 1) * (time.perf_counter() - start))
        taken = pace.passed(kind, number) if pace is not None else None
        seconds = time.perf_counter() - start
        self.add(kind, seconds if taken is None else taken, number)
        self.spent += seconds

    def open(self, kind: str) -> None:
        """A span begins: behind what the device has to do so far."""
        begin: torch.cuda.Event | float = time.perf_counter()
        if self._uses_events:
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
        self._begun[kind] = begin

    def close(self, kind: str) -> None:
        begin = self._begun.pop(kind)
        if isinstance(begin, float):
            self.add(kind, time.perf_counter() - begin)
            return
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end.record()
        self._open.append(((kind, -1), begin, end))

    def add(self, kind: str, seconds: float, number: int = -1) -> None:
        self.samples[kind, number].append(seconds)
        self._of_step[kind, number].append(seconds)

    def begin_step(self) -> None:
        """What was measured since the last report is of a step that was broken off."""
        self._of_step.clear()

    def take_step(self) -> dict[Sample, list[float]]:
        """All samples of the step that has ended."""
        found, self._of_step = self._of_step, defaultdict(list)
        return found

    def read(self) -> None:
        """Collect the events that are over, without waiting for others: they are read next time."""
        open_, self._open = self._open, []
        for sample, begin, end in open_:
            if end.query():  # type: ignore[no-untyped-call]
                self.add(sample[0], begin.elapsed_time(end) / 1000.0, sample[1])
            else:
                self._open.append((sample, begin, end))

    def clear(self) -> None:
        self.samples.clear()
        self._open.clear()

    def medians(self) -> dict[Sample, float]:
        return {sample: median(times) for sample, times in self.samples.items() if times}


def _spin(seconds: float) -> None:
    """Keep the device busy, behind what it has to do so far."""
    device = torch.cuda.get_device_properties()
    cycles_per_s = 1000 * getattr(device, "clock_rate", DEVICE_KHZ)
    torch.cuda._sleep(int(seconds * cycles_per_s))  # type: ignore[no-untyped-call]


def unit_costs(medians: dict[Sample, float], plan: Plan) -> dict[str, UnitCost]:
    """Costs of the units that were timed. A whole backward counts half for each of its parts."""
    costs: dict[str, UnitCost] = {}
    for number, unit in enumerate(plan.units):
        forward = medians.get(("forward", number))
        whole = medians.get(("backward", number))
        if forward is None:
            continue
        if whole is not None:
            costs[unit.name] = UnitCost(forward, whole / 2, whole / 2)
        else:
            weight = medians.get(("backward_weight", number), 0.0)
            costs[unit.name] = UnitCost(
                forward, medians.get(("backward_input", number), 0.0), weight
            )
    return costs


class Probe(msgspec.Struct, frozen=True):
    """How long messages and reductions take here, measured on the groups of the run."""

    link: Link = Link()
    reduce: Link = Link()


def probe_groups(mesh: Mesh, worker: str) -> Probe:
    """Send small and large messages over every link, reduce over every reduce group.

    All workers go through their groups in the order in which they were made, so none waits for
    one that waits elsewhere.
    """
    links: list[Link] = []
    reduces: list[Link] = []
    for (kind, _), group in mesh.groups.items():
        if kind == "link":
            links.append(_fit(partial(_ping, group, worker), 1.0))
        elif kind == "reduce":
            ways = 2 * (group.size - 1)
            found = _fit(partial(_reduce, group), ways / group.size)
            reduces.append(Link(found.latency / ways, found.bandwidth))
    return Probe(_typical(links), _typical(reduces))


_SMALL_BYTES, _LARGE_BYTES, _NUM_PINGS = 4096, 2**20, 8
_PROBE_S = 0.25
"""One group's messages of a size may take about this long: over a slow link fewer are sent."""


def _fit(measure: Callable[[int], float], share: float) -> Link:
    """Latency and bandwidth from two sizes; `share` of the bytes crosses a link."""
    small, large = measure(_SMALL_BYTES), measure(_LARGE_BYTES)
    rate = share * (_LARGE_BYTES - _SMALL_BYTES) / max(large - small, 1e-9)
    return Link(max(small - share * _SMALL_BYTES / rate, 0.0), rate)


def _ping(group: LiveGroup, worker: str, num_bytes: int) -> float:
    """One way; where messages go both ways, from one there and one back."""
    (peer,) = [member for member in group.members if member != worker]
    tensor = torch.zeros(num_bytes, dtype=torch.uint8, device=group.device)
    is_first = worker == group.members[0]

    def there(message: Tensor) -> None:
        (group.send if is_first else group.receive)(message, peer).wait()

    def there_and_back() -> None:
        there(tensor)
        if not group.is_one_way:
            (group.receive if is_first else group.send)(tensor, peer).wait()

    return _repeated(there_and_back, there, group.device) / (1 if group.is_one_way else 2)


def _reduce(group: LiveGroup, num_bytes: int) -> float:
    tensor = torch.zeros(num_bytes // 4, device=group.device)
    is_first = group.rank == 0

    def tell(count: Tensor) -> None:
        group.all_reduce_async(count if is_first else count.zero_()).wait()

    return _repeated(lambda: group.all_reduce_async(tensor).wait(), tell, group.device)


def _repeated(
    once: Callable[[], object], tell: Callable[[Tensor], None], device: torch.device
) -> float:
    """The median of so many times as there is time for; `tell` brings the first member's number
    to the others, since all must do it equally often.
    """
    times = [_seconds(once)]
    more = max(0, min(_NUM_PINGS - 1, int(_PROBE_S / times[0])))
    count = torch.tensor([float(more)], device=device)
    tell(count)
    times.extend(_seconds(once) for _ in range(int(count.item())))
    return median(times)


def _seconds(once: Callable[[], object]) -> float:
    start = time.perf_counter()
    once()
    return time.perf_counter() - start


def _typical(links: list[Link]) -> Link:
    if not links:
        return Link()
    return Link(median(link.latency for link in links), median(link.bandwidth for link in links))


def make_profile(
    costs: dict[str, UnitCost],
    medians: dict[Sample, float],
    probe: Probe,
    plan: Plan,
    worker: str,
    *,
    emulated: bool = False,
) -> Profile:
    """What one worker measured, as a profile that the timeline reads back."""
    held = HolderMap(plan).num_parameters[worker]
    degrees = {stage.tensor: 1.0 for stage, _ in plan.seats[worker]}
    return Profile(
        source="measured on emulated devices" if emulated else "measured",
        unit=costs,
        tensor=degrees,
        within_node=probe.link,
        between_nodes=probe.link,
        reduce=probe.reduce,
        action=medians.get(("action", -1), 0.0),
        agree=medians.get(("agree", -1), 0.0),
        update=medians.get(("optimizer", -1), 0.0) / max(1, held),
    )
