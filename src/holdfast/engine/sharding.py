"""Parameters that are cut over a shard group: gathered before a unit is used, dropped behind it.

A worker holds its rows of every tensor (its slice). What it computes with is the whole tensor, a
parameter whose memory exists only between the gathering and the dropping. Its gradient is the
local sum of the micro-batches that this worker computed. Summed over the group it is cut again:
each member gets the sum of its rows (`Scatter`, used by the reduction).

A message is padded: every member's rows of all tensors of a unit, one behind the other, in a field
of one width, since libraries gather and scatter equal parts only. A member may have no rows at all.

Gathers run ahead of the computation, at most two at a time. All members start those of their group
in the order of their lists. Where units stay gathered for the whole step, all gathers are waited
for before the first wait for a message: from then on no member waits for another one's gathers.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.engine.groups import LiveGroup, Pending
from holdfast.errors import invariant
from holdfast.plan.units import Box, box_size

NUM_AHEAD = 2
"""Gathers at a time: the one that is needed next, and one ahead of it."""


@dataclass(slots=True)
class ShardedTensor:
    """One tensor (or its share along the tensor axis) that a shard group holds in parts."""

    name: str
    box: Box
    boxes: tuple[Box, ...]
    """What every member of the group holds of it."""
    rank: int
    parameter: nn.Parameter
    """The whole of it: what units compute with."""
    num_users: int = 0
    """Gathered units that need it."""

    def rows(self, whole: Tensor, rank: int) -> Tensor:
        """A member's part of a tensor of the whole's shape, as it lies in memory."""
        low, high = self.boxes[rank][0]
        first = self.box[0][0]
        return whole[low - first : high - first]

    def allocate(self) -> None:
        """Its memory again; the values are to be written."""
        data = self.parameter.data
        data.untyped_storage().resize_(data.numel() * data.element_size())

    def drop(self) -> None:
        """Give its memory back. What autograd keeps of it refers to the same storage, which is
        filled again before a backward pass.
        """
        self.parameter.data.untyped_storage().resize_(0)


class Packing:
    """Where the parts of some tensors lie in a message between members of their group."""

    def __init__(self, tensors: Sequence[ShardedTensor]) -> None:
        self.tensors = tuple(tensors)
        self.rank, self.degree = tensors[0].rank, len(tensors[0].boxes)
        totals = [sum(box_size(t.boxes[r]) for t in tensors) for r in range(self.degree)]
        self.width = max(totals)

    def cut(self, field: Tensor, rank: int) -> list[Tensor]:
        """A member's field, seen as its parts of the tensors."""
        views: list[Tensor] = []
        at = 0
        for tensor in self.tensors:
            sizes = [high - low for low, high in tensor.boxes[rank]]
            size = box_size(tensor.boxes[rank])
            views.append(field[at : at + size].view(sizes))
            at += size
        return views

    def pack_rows(self, wholes: Sequence[Tensor | None], out: Tensor) -> None:
        """Whole tensors, member by member; None: zeros."""
        fields = out.view(self.degree, self.width)
        targets, sources = [], []
        for rank in range(self.degree):
            for tensor, whole, part in zip(
                self.tensors, wholes, self.cut(fields[rank], rank), strict=True
            ):
                if whole is None:
                    part.zero_()
                elif part.numel():
                    targets.append(part)
                    sources.append(tensor.rows(whole, rank))
        if targets:
            torch._foreach_copy_(targets, sources)

    def unpack_rows(self, packed: Tensor, wholes: Sequence[Tensor]) -> None:
        fields = packed.view(self.degree, self.width)
        targets, sources = [], []
        for rank in range(self.degree):
            for tensor, whole, part in zip(
                self.tensors, wholes, self.cut(fields[rank], rank), strict=True
            ):
                if part.numel():
                    targets.append(tensor.rows(whole, rank))
                    sources.append(part)
        torch._foreach_copy_(targets, sources)


class _UnitGather:
    """What has to be gathered for one unit."""

    def __init__(self, tensors: Sequence[ShardedTensor], group: LiveGroup) -> None:
        self.packing, self.group = Packing(tensors), group


@dataclass(slots=True)
class _Gathering:
    unit: int
    own: Tensor
    packed: Tensor
    pending: Pending


class Gathers:
    """The gathered units of one worker under one plan."""

    def __init__(
        self,
        units: Mapping[int, tuple[Sequence[ShardedTensor], LiveGroup]],
        parts: Mapping[str, Tensor],
        *,
        by_pass: Collection[int],
    ) -> None:
        """`units`: sharded units, their tensors and their group; `parts`: what this worker holds of
        the tensors; `by_pass`: units that are dropped after every pass.
        """
        self._units = {unit: _UnitGather(*found) for unit, found in units.items()}
        self._parts, self._by_pass = parts, frozenset(by_pass)
        self._queue: deque[int] = deque()
        self._flights: deque[_Gathering] = deque()
        self._present: dict[int, None] = {}
        self._free: list[tuple[Tensor, Tensor]] = []
        self.waited = 0.0
        """For gathers, since the start, in seconds."""

    def begin(self) -> None:
        """A step begins, or what is left of one: nothing is gathered."""
        self._queue.clear()
        self._flights.clear()
        for unit in list(self._present):
            self._drop(unit)

    def ask(self, unit: int) -> None:
        """The unit is needed soon."""
        if unit in self._units:
            self._queue.append(unit)
            self._launch()

    def need(self, unit: int) -> None:
        """The unit is used now; waits until it is gathered."""
        if unit not in self._units or unit in self._present:
            return
        start = time.perf_counter()
        while unit not in self._present:
            invariant(bool(self._flights), f"unit {unit} is used, and was not asked for")
            self._land()
        self.waited += time.perf_counter() - start

    def used(self, unit: int) -> None:
        """A pass through the unit has ended."""
        if unit in self._by_pass and unit in self._present:
            self._drop(unit)

    def finish_before_waiting(self) -> None:
        """No other member waits for a gather while this one waits for something else."""
        while any(unit not in self._by_pass for unit in self._asked()):
            self._land()

    def _asked(self) -> list[int]:
        return [*(flight.unit for flight in self._flights), *self._queue]

    def finish(self) -> None:
        while self._flights:
            self._land()

    def release(self, unit: int) -> None:
        """The list says that it is not used any more; other members count on its gathering."""
        if unit in self._asked():
            self.need(unit)
        if unit in self._present:
            self._drop(unit)

    def _launch(self) -> None:
        while self._queue and len(self._flights) < NUM_AHEAD:
            unit = self._queue.popleft()
            gather = self._units[unit]
            packing = gather.packing
            own, packed = self._rooms(packing)
            targets = [part for part in packing.cut(own, packing.rank) if part.numel()]
            held = [self._parts[t.name] for t in packing.tensors if t.name in self._parts]
            if targets:
                torch._foreach_copy_(targets, held)
            pending = gather.group.gather_async(packed, own)
            self._flights.append(_Gathering(unit, own, packed, pending))

    def _rooms(self, packing: Packing) -> tuple[Tensor, Tensor]:
        """A member's field, and one for all; used again where they are large enough."""
        size = packing.width
        example = packing.tensors[0].parameter.data
        if not self._free:
            packings = [unit.packing for unit in self._units.values()]
            own = example.new_empty(max(p.width for p in packings))
            self._free.append((own, example.new_empty(max(p.width * p.degree for p in packings))))
        own, packed = self._free.pop()
        return own[:size], packed[: size * packing.degree]

    def _land(self) -> None:
        flight = self._flights.popleft()
        flight.pending.wait_on_device()
        packing = self._units[flight.unit].packing
        for tensor in packing.tensors:
            if not tensor.num_users:
                tensor.allocate()
            tensor.num_users += 1
        # Not through the parameter itself: that would count as a change of what autograd keeps.
        packing.unpack_rows(flight.packed, [tensor.parameter.data for tensor in packing.tensors])
        self._present[flight.unit] = None
        self._give_back(flight)
        self._launch()

    def _give_back(self, flight: _Gathering) -> None:
        own, packed = (room._base for room in (flight.own, flight.packed))
        if own is not None and packed is not None:
            self._free.append((own, packed))

    def _drop(self, unit: int) -> None:
        del self._present[unit]
        for tensor in self._units[unit].packing.tensors:
            tensor.num_users -= 1
            if not tensor.num_users:
                tensor.drop()


class Scatter:
    """The local sums of a bucket, summed over the shard group, each member getting its rows."""

    def __init__(
        self, tensors: Sequence[ShardedTensor], group: LiveGroup, results: Iterable[str]
    ) -> None:
        """`results`: tensors of which this worker needs the sum."""
        self._packing, self.group = Packing(tensors), group
        self._results = frozenset(results)
        self.num_elements = self._packing.width * self._packing.degree
        self.width = self._packing.width

    def load(self, staging: Tensor) -> Tensor:
        packed = staging[: self.num_elements]
        grads = [tensor.parameter.grad for tensor in self._packing.tensors]
        self._packing.pack_rows(grads, packed)
        return packed

    def sums(self, scattered: Tensor) -> dict[str, Tensor]:
        """This worker's rows of the sums, by tensor."""
        parts = self._packing.cut(scattered, self._packing.rank)
        return {
            tensor.name: part
            for tensor, part in zip(self._packing.tensors, parts, strict=True)
            if part.numel() and tensor.name in self._results
        }
