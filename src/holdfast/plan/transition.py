"""Transition: how to get from one plan to the next, as data.

For every worker of the new plan, the pieces of its slices it does not hold yet are fetched from
workers that do under the old plan. Sources are chosen so that no worker sends more than it must:
the least loaded holder, one on the same node before one elsewhere. A piece without a live holder
cannot be moved; that is an error here, and a matter for snapshots elsewhere.

`replay` plays a transition on symbolic state and proves that afterwards every worker holds
exactly what the new plan gives it: no slice lost, none received that was already there, none
taken from a worker that never had it.
"""

from collections.abc import Collection, Iterator

import msgspec

from holdfast.errors import HoldfastError, invariant
from holdfast.plan.groups import Group, plan_groups
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.units import Box, box_size, intersect, subtract
from holdfast.plan.workers import node_of


class Move(msgspec.Struct, frozen=True):
    """One piece of a tensor (parameters and optimizer state together) from worker to worker."""

    tensor: str
    box: Box
    source: str
    target: str
    num_bytes: int


class Transition(msgspec.Struct, frozen=True):
    moves: tuple[Move, ...]
    new_groups: tuple[Group, ...]
    kept_groups: tuple[Group, ...]
    dropped_groups: tuple[Group, ...]
    joining: tuple[str, ...]
    leaving: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        return sum(move.num_bytes for move in self.moves)

    def bytes_sent(self) -> dict[str, int]:
        sent: dict[str, int] = {}
        for move in self.moves:
            sent[move.source] = sent.get(move.source, 0) + move.num_bytes
        return sent


def plan_transition(old: Plan, new: Plan, dead: Collection[str] = ()) -> Transition:
    """`dead` workers hold nothing any more and may not appear in the new plan."""
    if old.units != new.units:
        raise HoldfastError(
            f"the plans are for different models: {len(old.units)} units ({old.units[0].name} ...) "
            f"against {len(new.units)} ({new.units[0].name} ...), or their tensors or costs differ"
        )
    for worker in new.workers:
        if worker in dead:
            raise HoldfastError(f"the new plan uses {worker}, which is dead")
    moves = _Mover(old, new, dead).moves()
    before, after = plan_groups(old), plan_groups(new)
    old_set, new_set = dict.fromkeys(before), dict.fromkeys(after)
    lost = frozenset(dead)
    return Transition(
        moves=tuple(moves),
        new_groups=tuple(g for g in after if g not in old_set or not lost.isdisjoint(g.members)),
        kept_groups=tuple(g for g in after if g in old_set and lost.isdisjoint(g.members)),
        dropped_groups=tuple(g for g in before if g not in new_set),
        joining=tuple(w for w in new.workers if w not in old.seats or w in dead),
        leaving=tuple(w for w in old.workers if w not in new.seats),
    )


class _Mover:
    def __init__(self, old: Plan, new: Plan, dead: Collection[str]) -> None:
        self.old, self.new, self.dead = old, new, dead
        self.old_map, self.new_map = HolderMap(old), HolderMap(new)
        self.sources: dict[str, dict[Box, tuple[str, ...]]] = {}
        self.sent: dict[str, int] = dict.fromkeys(old.workers, 0)

    def moves(self) -> Iterator[Move]:
        for worker in self.new.workers:
            if _same_seats(self.old, self.new, worker) and worker not in self.dead:
                continue
            held = {} if worker in self.dead else self.old_map.slices(worker)
            for tensor, boxes in self.new_map.slices(worker).items():
                missing = list(boxes)
                for have in held.get(tensor, ()):
                    missing = [piece for box in missing for piece in subtract(box, have)]
                for box in missing:
                    yield from self._fetch(tensor, box, worker)

    def _fetch(self, tensor: str, box: Box, target: str) -> Iterator[Move]:
        """Split a missing box over the boxes that old holders have; each piece from the best of
        them.
        """
        rest = [box]
        for have, holders in self._live_holders(tensor).items():
            for piece in rest:
                common = intersect(piece, have)
                if common is not None:
                    yield self._move(tensor, common, holders, target)
            rest = [left for piece in rest for left in subtract(piece, have)]
        if rest:
            raise HoldfastError(
                f"{target} needs {tensor} {format_box(rest[0])}, and no live worker of the old "
                f"plan holds it: the last copy is gone, restore it from a snapshot"
            )

    def _live_holders(self, tensor: str) -> dict[Box, tuple[str, ...]]:
        if tensor not in self.sources:
            holders = self.old_map.holders(tensor)
            live = {
                box: tuple(worker for worker in workers if worker not in self.dead)
                for box, workers in holders.items()
            }
            self.sources[tensor] = {box: workers for box, workers in live.items() if workers}
        return self.sources[tensor]

    def _move(self, tensor: str, box: Box, holders: tuple[str, ...], target: str) -> Move:
        size = box_size(box) * self.old.state_bytes.kept
        node = node_of(target)
        source = min(holders, key=lambda w: (self.sent[w], node_of(w) != node, holders.index(w)))
        self.sent[source] += size
        return Move(tensor, box, source, target, size)


def _same_seats(old: Plan, new: Plan, worker: str) -> bool:
    """Does the worker hold the same slices for sure? Cheap, so that large plans compare fast."""

    def seats(plan: Plan) -> list[tuple[int, int, tuple[tuple[str, int], ...], int]]:
        return [_seat(stage, position) for stage, position in plan.seats.get(worker, ())]

    return worker in old.seats and seats(old) == seats(new)


def _seat(stage: Stage, position: int) -> tuple[int, int, tuple[tuple[str, int], ...], int]:
    return (stage.first, stage.stop, stage.axes, position)


def format_box(box: Box) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in box) + "]"


def replay(old: Plan, new: Plan, transition: Transition, dead: Collection[str] = ()) -> None:
    """Play the moves on symbolic state; InternalError if the new plan's state is not exactly
    what results.
    """
    old_map, new_map = HolderMap(old), HolderMap(new)
    held = {worker: old_map.slices(worker) for worker in old.workers if worker not in dead}
    received: dict[tuple[str, str], list[Box]] = {}
    for move in transition.moves:
        have = held.get(move.source, {}).get(move.tensor, ())
        invariant(
            not _left_over([move.box], have),
            f"{move.source} sends {move.tensor} {format_box(move.box)}, which it does not hold",
        )
        received.setdefault((move.target, move.tensor), []).append(move.box)
    for worker in new.workers:
        for tensor, boxes in new_map.slices(worker).items():
            got = received.pop((worker, tensor), [])
            _check_result(worker, tensor, boxes, held.get(worker, {}).get(tensor, ()), got)
    invariant(
        not received, f"pieces are sent to workers that do not need them: {sorted(received)[:3]}"
    )


def _check_result(
    worker: str, tensor: str, needed: tuple[Box, ...], had: tuple[Box, ...], got: list[Box]
) -> None:
    lost = _left_over(list(needed), (*had, *got))
    invariant(not lost, f"{worker} ends without {tensor} {lost[:2]}")
    for number, box in enumerate(got):
        others = (*had, *got[:number])
        twice = [other for other in others if intersect(box, other) is not None]
        invariant(not twice, f"{worker} gets {tensor} {format_box(box)} twice")
        invariant(not _left_over([box], needed), f"{worker} gets {tensor} it does not need")


def _left_over(boxes: list[Box], without: Collection[Box]) -> list[Box]:
    for other in without:
        boxes = [piece for box in boxes for piece in subtract(box, other)]
    return boxes
