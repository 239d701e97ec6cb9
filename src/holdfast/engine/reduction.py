"""Reduction: the gradients of every unit summed over all its holders.

Each bucket is copied to staging and summed there; the local sum stays as it is until the result
is complete here, and only then is replaced by it. So a broken reduction loses nothing. Staging
is two buffers, each as large as the largest exchange, whatever the model's size: a third
exchange waits for one of the first two. It waits in a queue, not in the caller: the computation
goes on, and `progress` starts what has found room.

Everyone starts exchanges in one order, the order of the REDUCE actions in its list. A bucket
that is ready early waits for those before it, so that two workers never meet in one group with
different units.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.engine.groups import LiveGroup, Pending
from holdfast.engine.mesh import Mesh
from holdfast.engine.state import Bucket, WorkerState, local_index
from holdfast.errors import invariant
from holdfast.plan.reduce import Exchange, plan_exchanges

NUM_STAGING = 2


@dataclass(slots=True)
class _Part:
    """A piece of an exchange: where it lies in the local sum, and whether this worker adds to
    it.
    """

    view: Tensor
    adds: bool


@dataclass(slots=True)
class _Flight:
    """An exchange between its start and its end."""

    exchange: "_Prepared"
    staging: Tensor
    pending: Pending


class _Prepared:
    """An exchange as this worker takes part in it."""

    def __init__(self, exchange: Exchange, worker: str, bucket: Bucket, group: LiveGroup) -> None:
        self.group = group
        self.num_elements = exchange.num_elements
        self.parts: list[_Part] = []
        own = {piece.tensor: piece.box for piece in bucket.slices}
        for piece in exchange.pieces:
            view = bucket.views[piece.tensor][local_index(own[piece.tensor], piece.box)]
            self.parts.append(_Part(view, worker not in piece.silent))
        adds_all = all(part.adds for part in self.parts)
        whole = self.num_elements == bucket.flat.numel() and adds_all
        in_order = [piece.tensor for piece in exchange.pieces] == list(bucket.views)
        self.flat = bucket.flat if whole and in_order else None

    def load(self, staging: Tensor) -> None:
        if self.flat is not None:
            staging.copy_(self.flat)
            return
        at = 0
        for part in self.parts:
            size = part.view.numel()
            target = staging[at : at + size].view(part.view.shape)
            if part.adds:
                target.copy_(part.view)
            else:
                target.zero_()
            at += size

    def store(self, staging: Tensor) -> None:
        if self.flat is not None:
            self.flat.copy_(staging)
            return
        at = 0
        for part in self.parts:
            size = part.view.numel()
            part.view.copy_(staging[at : at + size].view(part.view.shape))
            at += size


class Reduction:
    """All exchanges of one worker under one plan. Reused every step."""

    def __init__(self, state: WorkerState, mesh: Mesh, order: Sequence[int]) -> None:
        """`order`: the units of this worker's REDUCE actions, as listed."""
        self._order = [unit for unit in order if unit in state.buckets]
        self._prepared: dict[int, list[_Prepared]] = {}
        self._counted: list[tuple[int, Tensor]] = []
        self._prepare(state, mesh)
        self._staging = self._make_staging(state)
        self._ready: set[int] = set()
        self._next = 0
        self._queue: deque[_Prepared] = deque()
        self._flights: list[_Flight] = []

    def _prepare(self, state: WorkerState, mesh: Mesh) -> None:
        exchanges = plan_exchanges(state.plan)
        for unit, bucket in state.buckets.items():
            self._prepared[unit] = []
            own = {piece.tensor: piece.box for piece in bucket.slices}
            for exchange in exchanges[unit]:
                if state.worker not in exchange.members:
                    continue
                if exchange.members[0] == state.worker:
                    for piece in exchange.pieces:
                        index = local_index(own[piece.tensor], piece.box)
                        self._counted.append((unit, bucket.views[piece.tensor][index]))
                group = mesh.reduce_group(exchange.members)
                if group is not None:
                    self._prepared[unit].append(_Prepared(exchange, state.worker, bucket, group))

    def _make_staging(self, state: WorkerState) -> list[Tensor]:
        sizes = [p.num_elements for prepared in self._prepared.values() for p in prepared]
        if not sizes:
            return []
        flat = next(iter(state.buckets.values())).flat
        return [flat.new_empty(max(sizes)) for _ in range(min(NUM_STAGING, len(sizes)))]

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
            self._queue.extend(self._prepared[self._order[self._next]])
            self._next += 1
        self.progress()

    def progress(self) -> None:
        """Finish what has arrived and start what has found room. Never blocks."""
        while self._flights and self._flights[0].pending.is_done():
            self._land(self._flights.pop(0))
        while self._queue and self._staging:
            self._launch(self._queue.popleft())

    def _launch(self, prepared: _Prepared) -> None:
        whole = self._staging.pop()
        staging = whole[: prepared.num_elements]
        prepared.load(staging)
        pending = prepared.group.all_reduce_async(staging)
        self._flights.append(_Flight(prepared, whole, pending))

    def _land(self, flight: _Flight) -> None:
        flight.pending.wait()
        flight.exchange.store(flight.staging[: flight.exchange.num_elements])
        self._staging.append(flight.staging)

    def finish(self) -> None:
        """Wait for everything; the buckets then hold the sums over all holders."""
        invariant(
            self._next == len(self._order),
            f"{len(self._order) - self._next} buckets were never ready to be reduced",
        )
        self.progress()
        while self._flights:
            self._land(self._flights.pop(0))
            self.progress()
        self._ready.clear()
        self._next = 0

    def squares(self, num_units: int) -> Tensor:
        """Sums of squares by unit, over the pieces this worker answers for (float64)."""
        slots = torch.zeros(num_units, dtype=torch.float64)
        for unit, view in self._counted:
            slots[unit] += float(view.double().square().sum())
        return slots
