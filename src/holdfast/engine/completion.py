"""Completing a broken step: which gradients here count, and what is added to them.

The slots are those of the plan in which the step was begun, among the workers that are left. For
each of them a worker brings its local sum (what the order kept, and what it computes again), or the
reduced result that it alone hands on, or nothing.

A micro-batch that runs again passes all its units, but its gradient is added only where it is
missing: what must not get it is put back after the unit's backward pass.
"""

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor

from holdfast.control.order import Share
from holdfast.control.report import LOSS_ADDEND, Addend, Slot
from holdfast.engine.state import TensorState
from holdfast.plan.exchanges import Exchange, plan_exchanges, restrict, slot_adders
from holdfast.plan.plan import Plan

GivenPart = Literal["sum", "result", "nothing", "none needed"]
Losses = dict[int, tuple[Tensor, int]]
"""Micro-batch -> its loss sum and its number of tokens."""


class Slots:
    """The slots that a worker's units add to; most of them it also holds."""

    def __init__(self, state: TensorState, base: Plan, workers: Collection[str]) -> None:
        """`base` numbers them; `workers` are those who take part."""
        self.exchanges: dict[Slot, Exchange] = {
            (unit, number): exchange
            for unit, found in enumerate(restrict(plan_exchanges(base), workers))
            for number, exchange in enumerate(found)
            if state.worker in exchange.adders
        }
        adders = slot_adders(base)
        self.addends: dict[int, tuple[Addend, ...]] = {
            unit: tuple((*slot, unit) for slot in self.exchanges if unit in adders[slot])
            for unit in state.units
        }
        """Unit -> the addends that its gradients go into."""

        self._worker = state.worker

    def held(self, unit: int) -> list[tuple[Slot, Exchange]]:
        """Of a unit, the slots whose result this worker needs."""
        return [
            (slot, found)
            for slot, found in self.exchanges.items()
            if slot[0] == unit and self._worker in found.members
        ]


class Completion:
    def __init__(
        self,
        share: Share,
        slots: Slots,
        state: TensorState,
        results: Collection[Slot],
        losses: Losses,
    ) -> None:
        """`results`: what is reduced here; `losses`: those known here."""
        self.share, self._slots, self._state = share, slots, state
        self._results = frozenset(results)
        self.losses = {number: losses[number] for number in share.losses}
        self._saved: list[tuple[Tensor, Tensor]] = []

    def clear(self) -> None:
        """Forget the sums that do not count."""
        kept = {*self.share.keep, *self._results}
        for slot in self._slots.exchanges:
            if slot not in kept:
                for piece in self._pieces(slot):
                    piece.zero_()

    def _pieces(self, slot: Slot) -> list[Tensor]:
        """Where the slot's local sums lie."""
        bucket = self._state.buckets[slot[0]]
        pieces = self._slots.exchanges[slot].pieces
        return [bucket.local_sum(piece.tensor, piece.box) for piece in pieces]

    def contribution(self, slot: Slot) -> GivenPart:
        if slot in self.share.done:
            return "none needed"
        if slot in self.share.give:
            return "result"
        return "nothing" if slot in self._results else "sum"

    def counts_loss(self, micro_batch: int) -> bool:
        return micro_batch in self.share.recompute.get(LOSS_ADDEND, ())

    def wanted(self, unit: int, micro_batch: int) -> tuple[Addend, ...]:
        """The addends that miss this micro-batch's gradient of the unit."""
        recompute = self.share.recompute
        return tuple(
            addend
            for addend in self._slots.addends[unit]
            if micro_batch in recompute.get(addend, ())
        )

    def save(self, unit: int, micro_batch: int) -> None:
        """Before the unit's backward: remember what must not change."""
        wanted = self.wanted(unit, micro_batch)
        spared = [addend[:2] for addend in self._slots.addends[unit] if addend not in wanted]
        pieces = [piece for slot in spared for piece in self._pieces(slot)]
        self._saved = [(piece, piece.clone()) for piece in pieces]

    def restore(self) -> None:
        """After it."""
        if self._saved:
            targets, values = zip(*self._saved, strict=True)
            torch._foreach_copy_(list(targets), list(values))
        self._saved = []
