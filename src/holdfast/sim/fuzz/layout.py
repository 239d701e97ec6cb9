"""A plan as the symbolic workers see it: elements instead of bytes.

An element is one row of a tensor, small enough that no plan ever cuts it. State is one history per
element; a slot's result covers the elements of its exchange.
"""

from collections.abc import Hashable
from functools import cached_property, lru_cache

from holdfast.control.order import Joiner
from holdfast.control.report import Addend, Slot
from holdfast.plan.exchanges import plan_exchanges, slot_adders
from holdfast.plan.feeding import given_pieces
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Hop, Plan
from holdfast.plan.transition import plan_transition
from holdfast.plan.units import Box

Element = tuple[str, int]


class SymbolicLayout:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.members: dict[Slot, tuple[str, ...]] = {}
        self.giving: dict[Slot, tuple[str, ...]] = {}
        """Workers whose gradients go into a slot: its members and their shard peers."""
        self.elements: dict[Slot, tuple[Element, ...]] = {}
        for unit, exchanges in enumerate(plan_exchanges(plan)):
            for number, exchange in enumerate(exchanges):
                self.members[unit, number] = exchange.members
                self.giving[unit, number] = exchange.adders
                self.elements[unit, number] = tuple(
                    element
                    for piece in exchange.pieces
                    for element in rows(piece.tensor, piece.box)
                )
        self.adders = slot_adders(plan)
        self._addends: dict[tuple[str, int], tuple[Addend, ...]] = {}
        self._given: dict[Hashable, dict[str, dict[int, list[Element]]]] = {}
        """By joiner and sources: several orders have the same plan."""

    @cached_property
    def slots_of(self) -> dict[str, tuple[Slot, ...]]:
        return {
            worker: tuple(slot for slot, members in self.members.items() if worker in members)
            for worker in self.plan.workers
        }

    @cached_property
    def groups_of(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Of every worker, the groups that it sums up gradients with."""
        groups = dict.fromkeys((*self.members.values(), *self.giving.values()))
        return {
            worker: tuple(found for found in groups if worker in found and len(found) > 1)
            for worker in self.plan.workers
        }

    @cached_property
    def given_slots_of(self) -> dict[str, tuple[Slot, ...]]:
        return {
            worker: tuple(slot for slot, giving in self.giving.items() if worker in giving)
            for worker in self.plan.workers
        }

    @cached_property
    def held(self) -> dict[str, tuple[Element, ...]]:
        holders = HolderMap(self.plan)
        return {
            worker: tuple(
                element
                for tensor, boxes in holders.slices(worker).items()
                for box in boxes
                for element in rows(tensor, box)
            )
            for worker in self.plan.workers
        }

    def given_to(self, joiner: Joiner) -> dict[str, dict[int, list[Element]]]:
        """Per source and unit, what it gives to a joiner of this plan."""
        key = (joiner.name, tuple(joiner.sources.items()))
        if key not in self._given:
            found = given_pieces(self.plan, joiner.name, joiner.sources)
            self._given[key] = {
                source: {
                    unit: [row for tensor, box in pieces for row in rows(tensor.name, box)]
                    for unit, pieces in units.items()
                }
                for source, units in found.items()
            }
        return self._given[key]

    def addends(self, worker: str, unit: int) -> tuple[Addend, ...]:
        """The sums to which a unit's gradient is added on a worker."""
        found = self._addends.get((worker, unit))
        if found is None:
            slots = [slot for slot in self.given_slots_of[worker] if unit in self.adders[slot]]
            found = self._addends[worker, unit] = tuple((*slot, unit) for slot in slots)
        return found

    @cached_property
    def hops_of(self) -> dict[str, tuple[tuple[int, int, Hop, bool], ...]]:
        """Per worker: (micro-batch, place in its route, hop, tells its loss)."""
        found: dict[str, list[tuple[int, int, Hop, bool]]] = {w: [] for w in self.plan.workers}
        for micro_batch, route in enumerate(self.plan.routes):
            for place, hop in enumerate(route):
                computing = self.plan.computing(self.plan.stage(hop.stage), micro_batch)
                for position, worker in enumerate(computing):
                    tells_loss = place == len(route) - 1 and position == 0
                    found[worker].append((micro_batch, place, hop, tells_loss))
        return {worker: tuple(hops) for worker, hops in found.items()}

    def computing_together(self, slot: Slot) -> list[tuple[str, ...]]:
        """Per stage and shard rank, the workers that add the same micro-batches to a slot."""
        return [
            tuple(w for w in self.giving[slot] if w in stage.row(rank))
            for stage in self.plan.stages
            for rank in range(stage.shard)
        ]


@lru_cache(maxsize=16)
def symbolic_layout(plan: Plan) -> SymbolicLayout:
    """Several orders of a run have the same plan."""
    return SymbolicLayout(plan)


def rows(tensor: str, box: Box) -> list[Element]:
    low, high = box[0]
    return [(tensor, row) for row in range(low, high)]


def moves_between(old: SymbolicLayout, new: SymbolicLayout) -> dict[str, dict[str, list[Element]]]:
    """Per target and source, the elements that move; those who join are fed otherwise."""
    found: dict[str, dict[str, list[Element]]] = {}
    for move in plan_transition(old.plan, new.plan).moves:
        if move.target in old.plan.seats:
            sources = found.setdefault(move.target, {})
            sources.setdefault(move.source, []).extend(rows(move.tensor, move.box))
    return found
