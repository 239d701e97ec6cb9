"""A plan as the symbolic workers see it: elements instead of bytes.

An element is one row of a tensor, small enough that no plan ever cuts it. State is one history per
element; a slot's result covers the elements of its exchange.
"""

from functools import cached_property

from holdfast.control.report import Addend, Slot
from holdfast.control.resolve import slot_adders
from holdfast.plan.exchanges import plan_exchanges
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Hop, Plan
from holdfast.plan.transition import plan_transition
from holdfast.plan.units import Box

Element = tuple[str, int]


class SymbolicLayout:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.members: dict[Slot, tuple[str, ...]] = {}
        self.elements: dict[Slot, tuple[Element, ...]] = {}
        for unit, exchanges in enumerate(plan_exchanges(plan)):
            for number, exchange in enumerate(exchanges):
                self.members[unit, number] = exchange.members
                self.elements[unit, number] = tuple(
                    element
                    for piece in exchange.pieces
                    for element in rows(piece.tensor, piece.box)
                )
        self.adders = slot_adders(plan)
        self._addends: dict[tuple[str, int], tuple[Addend, ...]] = {}

    @cached_property
    def slots_of(self) -> dict[str, tuple[Slot, ...]]:
        return {
            worker: tuple(slot for slot, members in self.members.items() if worker in members)
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

    @cached_property
    def _unit_tensors(self) -> list[frozenset[str]]:
        return [frozenset(tensor.name for tensor in unit.tensors) for unit in self.plan.units]

    def fed_with(self, worker: str, unit: int) -> list[Element]:
        """What a joiner gets with a unit; a tied tensor comes with the first unit it holds."""
        units = [u for s, _ in self.plan.seats[worker] for u in range(s.first, s.stop)]
        before = frozenset().union(*(self._unit_tensors[u] for u in units if u < unit))
        names = self._unit_tensors[unit] - before
        return [element for element in self.held[worker] if element[0] in names]

    def addends(self, worker: str, unit: int) -> tuple[Addend, ...]:
        """The sums to which a unit's gradient is added on a worker."""
        found = self._addends.get((worker, unit))
        if found is None:
            slots = [slot for slot in self.slots_of[worker] if unit in self.adders[slot]]
            found = self._addends[worker, unit] = tuple((*slot, unit) for slot in slots)
        return found

    @cached_property
    def hops_of(self) -> dict[str, tuple[tuple[int, int, Hop, bool], ...]]:
        """Per worker: (micro-batch, place in its route, hop, speaks for it)."""
        found: dict[str, list[tuple[int, int, Hop, bool]]] = {w: [] for w in self.plan.workers}
        for micro_batch, route in enumerate(self.plan.routes):
            for place, hop in enumerate(route):
                for position, worker in enumerate(self.plan.stage(hop.stage).workers):
                    speaks = place == len(route) - 1 and position == 0
                    found[worker].append((micro_batch, place, hop, speaks))
        return {worker: tuple(hops) for worker, hops in found.items()}

    def stage_members(self, slot: Slot) -> dict[str, tuple[str, ...]]:
        """Per stage, those of its workers that share in a slot."""
        return {
            stage.name: tuple(w for w in self.members[slot] if w in stage.workers)
            for stage in self.plan.stages
        }


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
