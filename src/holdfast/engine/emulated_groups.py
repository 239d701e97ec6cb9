"""Groups over emulated links: real messages, each with the moment at which its device had it ready.

A message arrives its link's time after that moment, or after the message before it has left; a
reduction ends its ring's time after the latest of its members' moments. A wait ends then, and not
before; the operation behind it is real and long done. The moment travels beside the data, in a
message or a maximum of one number, so both ends have to be emulated. A sum of numbers that are
precise enough carries the moments of all members itself: a reduction among many of them takes many
messages, and the cores that emulate a dozen devices would be busy with twice as many.
"""

from functools import partial

import torch
from torch import Tensor

from holdfast.engine.data import DataSource
from holdfast.engine.emulated_device import EmulatedDevice
from holdfast.engine.emulation import Emulation
from holdfast.engine.groups import GroupMaker, LiveGroup, Pending
from holdfast.engine.transport.transport import ReduceOp
from holdfast.plan.step_epilogue import ring

_SLICE_S = 0.02
"""How long one sleep of a wait lasts: in between it looks whether the group was given up."""


class EmulatedGroup(LiveGroup):
    def __init__(self, device: EmulatedDevice, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.emulated = device
        self._free_at: dict[str, float] = {}
        """By sender: when its link has room for the next message."""

    def all_reduce_async(self, tensor: Tensor, op: ReduceOp = "sum") -> Pending:
        if self.kind not in ("reduce", "all") or self.size == 1:
            return super().all_reduce_async(tensor, op)
        if op == "sum" and tensor.dtype == torch.float64:
            carrier = self._with_moment(tensor)
            return _CarriedSum(self, super().all_reduce_async(carrier), carrier, tensor)
        data = super().all_reduce_async(tensor, op)
        moment = _stamp(self.emulated.free_at)
        latest = super().all_reduce_async(moment, "max")
        num_bytes = tensor.numel() * tensor.element_size()
        return _EmulatedReduction(self, data, latest, moment, num_bytes)

    def _with_moment(self, tensor: Tensor) -> Tensor:
        """The tensor, and behind it this member's moment among zeros for those of the others."""
        carrier = tensor.new_zeros(tensor.numel() + self.size)
        carrier[: tensor.numel()] = tensor.reshape(-1)
        carrier[tensor.numel() + self.rank] = self.emulated.free_at
        return carrier

    def gather_async(self, out: Tensor, tensor: Tensor) -> Pending:
        return self._half_ring(super().gather_async(out, tensor), out)

    def scatter_async(self, out: Tensor, tensor: Tensor) -> Pending:
        return self._half_ring(super().scatter_async(out, tensor), tensor)

    def _half_ring(self, data: Pending, whole: Tensor) -> Pending:
        """Gathering and scattering are the two halves of a reduction."""
        moment = _stamp(self.emulated.free_at)
        latest = super().all_reduce_async(moment, "max")
        return _EmulatedReduction(self, data, latest, moment, whole.nbytes // 2)

    @property
    def tells_times(self) -> bool:
        return self.kind in ("link", "reduce", "all")

    def warm_up(self) -> None:
        """Of real connections only, on whatever thread makes them."""
        if self.size > 1:
            super().all_reduce_async(torch.zeros(1)).wait()

    def send(self, tensor: Tensor, to: str) -> Pending:
        data = super().send(tensor, to)
        if self.kind != "link":
            return data
        moment = _stamp(self.emulated.free_at)
        return _Both(self, data, super().send(moment, to), moment)

    def receive(self, tensor: Tensor, source: str) -> Pending:
        data = super().receive(tensor, source)
        if self.kind != "link":
            return data
        moment = _stamp(0.0)
        stamp = super().receive(moment, source)
        num_bytes = tensor.numel() * tensor.element_size()
        return _EmulatedMessage(self, data, stamp, moment, source, num_bytes)

    def arrival(self, source: str, moment: float, num_bytes: int) -> tuple[float, float]:
        """When a message is here that was ready at this moment, and what its way takes."""
        link = self.emulated.links.message(source, self.emulated.worker)
        leaves = max(moment, self._free_at.get(source, 0.0)) + link.occupancy(num_bytes)
        self._free_at[source] = leaves
        return leaves + link.latency, link.occupancy(num_bytes) + link.latency

    def reduced_at(self, moment: float, num_bytes: int) -> tuple[float, float]:
        """When a reduction ends whose last member was ready at this moment, and what it takes."""
        device = self.emulated
        if self.kind == "all":
            return moment + device.emulation.profile.agree, device.emulation.profile.agree
        seconds = ring(num_bytes, self.size, device.links.ring(self.members))
        device.ring_free_at = max(moment, device.ring_free_at) + seconds
        return device.ring_free_at, seconds


def emulate(
    emulation: Emulation | None, worker: str, data: DataSource
) -> tuple[EmulatedDevice | None, GroupMaker]:
    """A worker's device, and what makes groups over its links; real ones where none is."""
    if emulation is None:
        return None, LiveGroup
    device = EmulatedDevice(emulation, worker, data)
    return device, partial(EmulatedGroup, device)


def _stamp(moment: float) -> Tensor:
    return torch.tensor([moment], dtype=torch.float64)


class _Both(Pending):
    """An operation and the moment that goes with it."""

    def __init__(self, group: EmulatedGroup, data: Pending, stamp: Pending, moment: Tensor) -> None:
        self._emulated, self._data, self._stamp, self._moment = group, data, stamp, moment
        self._due: float | None = None

    def is_done(self) -> bool:
        """Not before the device clock is there."""
        if not (self._data.is_done() and self._stamp.is_done()):
            return False
        return self._due_at() <= self._emulated.emulated.free_at

    def wait(self) -> None:
        self._data.wait()
        self._stamp.wait()
        group, due = self._emulated, self._due_at()
        device = group.emulated
        while (rest := due - device.clock()) > 0:
            device.sleep_until(device.clock() + min(rest, _SLICE_S))
            group.check("", "emulated transfer")
        device.wait_for(due)

    wait_on_device = wait

    def _due_at(self) -> float:
        if self._due is None:
            self._due, self.seconds = self._find_due()
        return self._due

    def _find_due(self) -> tuple[float, float | None]:
        """Of a message that is sent: it has left at once."""
        return 0.0, None


class _EmulatedMessage(_Both):
    def __init__(
        self,
        group: EmulatedGroup,
        data: Pending,
        stamp: Pending,
        moment: Tensor,
        source: str,
        num_bytes: int,
    ) -> None:
        super().__init__(group, data, stamp, moment)
        self._source, self._num_bytes = source, num_bytes

    def _find_due(self) -> tuple[float, float | None]:
        return self._emulated.arrival(self._source, float(self._moment), self._num_bytes)


class _EmulatedReduction(_Both):
    def __init__(
        self,
        group: EmulatedGroup,
        data: Pending,
        stamp: Pending,
        moment: Tensor,
        num_bytes: int,
    ) -> None:
        super().__init__(group, data, stamp, moment)
        self._num_bytes = num_bytes

    def _find_due(self) -> tuple[float, float | None]:
        return self._emulated.reduced_at(float(self._moment.max()), self._num_bytes)


class _CarriedSum(_EmulatedReduction):
    """A sum with the moments of all its members behind it."""

    def __init__(
        self, group: EmulatedGroup, data: Pending, carrier: Tensor, tensor: Tensor
    ) -> None:
        super().__init__(group, data, data, carrier[tensor.numel() :], tensor.nbytes)
        self._sum, self._target = carrier[: tensor.numel()], tensor

    def wait(self) -> None:
        super().wait()
        self._target.copy_(self._sum.view(self._target.shape))

    wait_on_device = wait
