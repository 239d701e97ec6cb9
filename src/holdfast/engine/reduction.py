"""Reduction: the gradients of every unit summed over all its holders.

Each bucket is copied to staging and summed there; the local sum stays as it is until the result
is complete here, and only then is replaced by it. So a broken reduction loses nothing. Staging
is two buffers, each as large as the largest bucket, whatever the model's size: a third bucket
waits for one of the first two. It waits in a queue, not in the caller: the computation goes on,
and `progress` starts what has found room. All exchanges of a bucket start together, however many
it has: where stages are cut differently there are several, and buckets become ready faster than
one exchange after the other could be started between two units.

Where a shard group holds a unit in parts, its local sums are of whole tensors: they are summed over
the group first (`sharding.Scatter`), and the exchange starts from this worker's rows of that sum.
The local sums stay until the step is over, since the rows of other members may not be complete.

All workers start exchanges in one order, the order of the REDUCE actions in their lists. A bucket
that is ready early waits for those before it, so that two workers never meet in one group with
different units.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.control.report import Slot
from holdfast.detect.meter import StepMeter
from holdfast.engine.completion import Completion, GivenPart, Slots
from holdfast.engine.groups import LiveGroup, Pending
from holdfast.engine.mesh import Mesh
from holdfast.engine.sharding import Scatter
from holdfast.engine.state import Bucket, TensorState, local_index
from holdfast.errors import invariant
from holdfast.plan.exchanges import Exchange

NUM_STAGING = 2


class _Prepared:
    """An exchange as this worker takes part in it."""

    def __init__(
        self,
        slot: Slot,
        exchange: Exchange,
        worker: str,
        bucket: Bucket,
        group: LiveGroup,
        contribution: GivenPart,
        first: int,
    ) -> None:
        """`first`: where its elements begin in the staging of the bucket."""
        self.slot, self.group, self.bucket = slot, group, bucket
        self.contribution = contribution
        self.num_elements = exchange.num_elements
        self._place = slice(first, first + exchange.num_elements)
        self.parts = [
            (piece.tensor, local_index(bucket.slices[piece.tensor].box, piece.box))
            for piece in exchange.pieces
        ]
        self._silent = [at for at, piece in enumerate(exchange.pieces) if worker in piece.silent]
        self._views: dict[int, list[Tensor]] = {}

    def sums(self) -> list[Tensor]:
        """The pieces of the exchange where they lie in the local sums."""
        return [self.bucket.gradient(tensor)[index] for tensor, index in self.parts]

    def load(self, staging: Tensor) -> Tensor:
        """Copy the pieces to staging, one behind the other; the part of it they fill."""
        if self.contribution == "nothing":
            return staging[self._place].zero_()
        sums = self.sums()
        views = self._cut(staging, sums)
        torch._foreach_copy_(views, sums)
        if self.contribution == "sum":
            for at in self._silent:
                views[at].zero_()  # another tensor rank of this stage adds the same
        return staging[self._place]

    def store(self, staging: Tensor) -> None:
        sums = self.sums()
        torch._foreach_copy_(sums, self._cut(staging, sums))

    def _cut(self, staging: Tensor, sums: list[Tensor]) -> list[Tensor]:
        """Staging, seen as the pieces. There are two buffers, so two sets of views."""
        if id(staging) not in self._views:
            views: list[Tensor] = []
            at = self._place.start
            for piece in sums:
                views.append(staging[at : at + piece.numel()].view(piece.shape))
                at += piece.numel()
            self._views[id(staging)] = views
        return self._views[id(staging)]


@dataclass(slots=True)
class _Flight:
    """An exchange between its start and its end."""

    exchange: _Prepared
    staging: Tensor
    pending: Pending
    started: float
    is_last: bool
    """Of its bucket: behind it the staging is free."""


@dataclass(slots=True)
class _Scattering:
    """A bucket between the start and the end of its sum over the shard group."""

    unit: int
    staging: Tensor
    out: Tensor
    pending: Pending


class Reduction:
    """All exchanges of one worker under one plan. Reused every step."""

    def __init__(
        self,
        state: TensorState,
        mesh: Mesh,
        order: Sequence[int],
        slots: Slots,
        *,
        reduced: Callable[[Slot], object] = lambda slot: None,
        completion: Completion | None = None,
        meter: StepMeter | None = None,
        scatters: Mapping[int, Scatter] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`order`: the units of this worker's REDUCE actions, as listed. `reduced` is told every
        slot whose result is complete here. `scatters`: of units that a shard group holds in parts.
        `dtype`: in which sums are made; None: that of the gradients.
        """
        self._slots, self._reduced, self._completion = slots, reduced, completion
        self._meter = meter
        self._spans: dict[tuple[str, ...], tuple[int, float]] = {}
        """Bytes and time of the last exchange of every group: the same one at all its members."""
        self._alone: dict[int, list[Slot]] = {}
        """Slots that no other worker holds: their sum is the result."""
        self.on_launch: Callable[[], object] = lambda: None
        """Called when an exchange has been started."""
        self.on_land: Callable[[int, float], object] = lambda unit, started: None
        """Called when one has ended, with its unit and when it was started."""
        self._order = [unit for unit in order if unit in state.buckets]
        self._prepared: dict[int, list[_Prepared]] = {}
        self._counted: dict[int, list[tuple[str, tuple[slice, ...]]]] = {}
        self._buckets = state.buckets
        self._prepare(state, mesh)
        self._scatters = scatters or {}
        self._to_scatter: deque[int] = deque()
        self._scatterings: deque[_Scattering] = deque()
        self._scattered: set[int] = set()
        self._scatter_rooms = self._make_scatter_rooms(state, dtype)
        self._next_queued = 0
        self._staging = self._make_staging(state, dtype)
        self._ready: set[int] = set()
        self._next = 0
        self._queue: deque[int] = deque()
        """Units whose exchanges may start, as soon as there is staging."""
        self._flights: list[_Flight] = []

    def _prepare(self, state: TensorState, mesh: Mesh) -> None:
        for unit, bucket in state.buckets.items():
            self._prepared[unit] = []
            for slot, exchange in self._slots.held(unit):
                if exchange.members[0] == state.worker:
                    self._counted.setdefault(unit, []).extend(
                        (piece.tensor, local_index(bucket.slices[piece.tensor].box, piece.box))
                        for piece in exchange.pieces
                    )
                contribution = self._contribution(slot)
                group = mesh.reduce_group(exchange.members)
                if len(exchange.members) == 1:
                    self._alone.setdefault(unit, []).append(slot)
                elif contribution != "none needed":
                    invariant(group is not None, f"slot {slot} has no group {exchange.members}")
                    assert group is not None
                    first = sum(other.num_elements for other in self._prepared[unit])
                    self._prepared[unit].append(
                        _Prepared(slot, exchange, state.worker, bucket, group, contribution, first)
                    )

    def _contribution(self, slot: Slot) -> GivenPart:
        return "sum" if self._completion is None else self._completion.contribution(slot)

    def _make_staging(self, state: TensorState, dtype: torch.dtype | None) -> list[Tensor]:
        found = [prepared for prepared in self._prepared.values() if prepared]
        sizes = [sum(each.num_elements for each in prepared) for prepared in found]
        if not sizes:
            return []
        example = next(iter(state.slices.values())).updated.detach()
        return [
            example.new_empty(max(sizes), dtype=dtype) for _ in range(min(NUM_STAGING, len(sizes)))
        ]

    def _make_scatter_rooms(
        self, state: TensorState, dtype: torch.dtype | None
    ) -> list[tuple[Tensor, Tensor]]:
        if not self._scatters:
            return []
        example = next(iter(state.sharded.values())).parameter.data
        whole = max(scatter.num_elements for scatter in self._scatters.values())
        width = max(scatter.width for scatter in self._scatters.values())
        count = min(NUM_STAGING, len(self._scatters))
        return [
            (example.new_empty(whole, dtype=dtype), example.new_empty(width, dtype=dtype))
            for _ in range(count)
        ]

    @property
    def staging_bytes(self) -> int:
        """Extra memory: at most two buckets."""
        return sum(staging.numel() * staging.element_size() for staging in self._staging)

    def mark_ready(self, unit: int) -> None:
        """The local sum of a unit's bucket is complete: reduce it as soon as its turn comes."""
        if unit not in self._prepared or unit in self._ready:
            return
        self._ready.add(unit)
        while self._next < len(self._order) and self._order[self._next] in self._ready:
            if self._order[self._next] in self._scatters:
                self._to_scatter.append(self._order[self._next])
            self._next += 1
        self.progress()

    def progress(self) -> None:
        """Finish what has arrived and start what has found room. Never blocks."""
        while self._scatterings and self._scatterings[0].pending.is_done():
            self._land_scatter()
        while self._to_scatter and self._scatter_rooms:
            self._launch_scatter(self._to_scatter.popleft())
        self._queue_exchanges()
        while self._flights and self._flights[0].pending.is_done():
            self._land(self._flights.pop(0))
        while self._queue and self._staging:
            self._launch(self._prepared[self._queue.popleft()])

    def _queue_exchanges(self) -> None:
        """Those of units whose local sums are ready, in the order of all workers."""
        while self._next_queued < self._next:
            unit = self._order[self._next_queued]
            if unit in self._scatters and unit not in self._scattered:
                return
            for slot in self._alone.get(unit, ()):
                self._reduced(slot)
            if self._prepared[unit]:
                self._queue.append(unit)
            self._next_queued += 1

    def _launch_scatter(self, unit: int) -> None:
        scatter, (staging, out) = self._scatters[unit], self._scatter_rooms.pop()
        pending = scatter.group.scatter_async(out[: scatter.width], scatter.load(staging))
        self._scatterings.append(_Scattering(unit, staging, out, pending))
        self.on_launch()

    def _land_scatter(self) -> None:
        done = self._scatterings.popleft()
        done.pending.wait()
        self._scatter_rooms.append((done.staging, done.out))
        self._scattered.add(done.unit)
        sums = self._scatters[done.unit].sums(done.out)
        bucket = self._buckets[done.unit]
        for slot, exchange in self._slots.held(done.unit):
            if self._contribution(slot) == "sum":
                for piece in exchange.pieces:
                    index = local_index(bucket.slices[piece.tensor].box, piece.box)
                    bucket.gradient(piece.tensor)[index].copy_(sums[piece.tensor][index])

    def _launch(self, bucket: Sequence[_Prepared]) -> None:
        staging = self._staging.pop()
        for each in bucket:
            pending = each.group.all_reduce_async(each.load(staging))
            is_last = each is bucket[-1]
            self._flights.append(_Flight(each, staging, pending, time.perf_counter(), is_last))
            self.on_launch()

    def _land(self, flight: _Flight) -> None:
        flight.pending.wait()
        seconds = flight.pending.seconds
        if seconds is None:
            seconds = time.perf_counter() - flight.started
        num_bytes = flight.exchange.num_elements * flight.staging.element_size()
        self._spans[flight.exchange.group.members] = (num_bytes, seconds)
        flight.exchange.store(flight.staging)
        self._reduced(flight.exchange.slot)
        if flight.is_last:
            self._staging.append(flight.staging)
        self.on_land(flight.exchange.slot[0], flight.started)

    def finish(self) -> None:
        """Wait for everything; the buckets then hold the sums over all holders."""
        invariant(
            self._next == len(self._order),
            f"{len(self._order) - self._next} buckets were never ready to be reduced",
        )
        self.progress()
        while self._scatterings or self._flights:
            self._land_oldest()
            self.progress()
        self._ready.clear()
        self._scattered.clear()
        self._next = self._next_queued = 0
        if self._meter is not None:
            for members, (num_bytes, seconds) in self._spans.items():
                self._meter.moved(members, num_bytes, seconds)

    def _land_oldest(self) -> None:
        """In the order of all workers: what is oldest has been started by all its members."""
        place = {unit: at for at, unit in enumerate(self._order)}
        scattered = place[self._scatterings[0].unit] if self._scatterings else len(place)
        is_older = self._flights and place[self._flights[0].exchange.slot[0]] < scattered
        # An exchange that never ends is waited for last: the shard group is left at rest.
        if is_older and not (self._scatterings and self._flights[0].exchange.group.is_stopping):
            self._land(self._flights.pop(0))
        else:
            self._land_scatter()

    def squares(self, num_units: int) -> Tensor:
        """Sums of squares by unit, over the pieces this worker answers for (float64); on its
        device, which is not waited for.
        """
        example = next(iter(self._buckets.values()), None)
        device = example.device if example is not None else None
        slots = torch.zeros(num_units, dtype=torch.float64, device=device)
        for unit, pieces in self._counted.items():
            bucket = self._buckets[unit]
            found = [bucket.gradient(name)[index] for name, index in pieces]
            # In at least float32: a norm rounded to bfloat16 would clip wrongly.
            wide = torch.promote_types(found[0].dtype, torch.float32)
            norms = torch._foreach_norm(found, 2, dtype=wide)
            slots[unit] = torch.stack(norms).double().square().sum()
        return slots
