"""Exchanges: how the gradients of a unit are summed over all its holders.

A bucket is what one unit's gradients need: its own tensors, and tied ones if it is their first
unit. It is summed by *exchanges*, each a set of workers that all hold the same pieces:

    - where all stages are cut alike, workers at the same position form an exchange: one message
      per worker and unit;
    - a piece held by several workers of one stage (an unsplit norm, a key-value head shared by two
      tensor ranks) goes over all its holders at once, so that all of them get the same bits. An
      unsplit tensor has the same gradient on every tensor rank, and only the first one counts;
    - where stages are cut differently, the pieces are the cells of the holder map.

Workers of one stage along the shard axis hold different pieces, but each of them has gradients of
all pieces, from micro-batches of its own. So an exchange has *adders*: its members, and their shard
peers. First every stage sums its shard ranks, each piece on the one that holds it; then the members
sum over stages.

The first member of an exchange answers for its pieces where something is counted once: the
gradient norm, the copy in a snapshot.
"""

from collections.abc import Collection
from functools import lru_cache
from itertools import pairwise

import msgspec

from holdfast.plan.holders import Cell, HolderMap
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.units import Box, TensorSpec, box_size


class GradientPiece(msgspec.Struct, frozen=True):
    tensor: str
    box: Box
    silent: tuple[str, ...] = ()
    """Members whose gradient repeats another's and must not be added."""


class Exchange(msgspec.Struct, frozen=True):
    unit: int
    members: tuple[str, ...]
    pieces: tuple[GradientPiece, ...]
    adders: tuple[str, ...] = ()
    """All workers whose gradients go into it."""

    @property
    def num_elements(self) -> int:
        return sum(box_size(piece.box) for piece in self.pieces)


@lru_cache(maxsize=16)
def plan_exchanges(plan: Plan) -> tuple[tuple[Exchange, ...], ...]:
    """Per unit, its exchanges in the order in which all workers start them."""
    holders = HolderMap(plan)
    return tuple(unit_exchanges(holders, unit) for unit in range(len(plan.units)))


@lru_cache(maxsize=16)
def slot_adders(plan: Plan) -> dict[tuple[int, int], tuple[int, ...]]:
    """Per unit and number of an exchange, the units that add to it: its own, and those that share
    a tied tensor with it.
    """
    holders = HolderMap(plan)
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for unit, exchanges in enumerate(plan_exchanges(plan)):
        for number, exchange in enumerate(exchanges):
            adders = {u for piece in exchange.pieces for u in holders.units_of_tensor[piece.tensor]}
            found[unit, number] = tuple(sorted(adders))
    return found


def restrict(
    exchanges: tuple[tuple[Exchange, ...], ...], workers: Collection[str]
) -> tuple[tuple[Exchange, ...], ...]:
    """The same exchanges, numbered alike, among these workers; one without a member left has no
    members.
    """
    return tuple(
        tuple(
            msgspec.structs.replace(
                exchange,
                members=tuple(worker for worker in exchange.members if worker in workers),
                adders=tuple(worker for worker in exchange.adders if worker in workers),
            )
            for exchange in found
        )
        for found in exchanges
    )


def unit_exchanges(holders: HolderMap, unit: int) -> tuple[Exchange, ...]:
    stages = [holders.plan.stages[number] for number in holders.bucket_stages[unit]]
    pieces: dict[tuple[tuple[str, ...], tuple[str, ...]], list[GradientPiece]] = {}
    for tensor in holders.buckets[unit]:
        owners = [stage for stage in stages if _holds(holders, stage, tensor)]
        if cut_alike(owners, tensor):
            for position in range(len(owners[0].workers)):
                members = tuple(dict.fromkeys(stage.workers[position] for stage in owners))
                box = holders.box_at(tensor, owners[0], position)
                if box_size(box):
                    found = pieces.setdefault((members, _adders(owners, members)), [])
                    found.append(GradientPiece(tensor.name, box))
        else:
            for cell in holders.cells(tensor.name):
                found = pieces.setdefault((cell.holders, _adders(owners, cell.holders)), [])
                found.append(_shared(owners, tensor, cell))
    return tuple(
        Exchange(unit, members, tuple(found), adders) for (members, adders), found in pieces.items()
    )


def _adders(stages: list[Stage], members: tuple[str, ...]) -> tuple[str, ...]:
    """The members and their shard peers in these stages."""
    found = dict.fromkeys(members)
    for stage in stages:
        if stage.shard > 1:
            for position, worker in enumerate(stage.workers):
                if worker in members:
                    found.update(dict.fromkeys(stage.peers("shard", position)))
    return tuple(found)


def _holds(holders: HolderMap, stage: Stage, tensor: TensorSpec) -> bool:
    return any(stage.first <= unit < stage.stop for unit in holders.units_of_tensor[tensor.name])


def cut_alike(stages: list[Stage], tensor: TensorSpec) -> bool:
    """Does every worker hold a piece of its own, the same as its counterparts in other stages?"""
    first = stages[0]
    if any(stage.axes != first.axes for stage in stages):
        return False
    return not _is_shared(tensor, first.tensor)


def _is_shared(tensor: TensorSpec, degree: int) -> bool:
    """Do several tensor ranks of one stage hold the same part?"""
    if degree == 1:
        return False
    if tensor.split is None:
        return True
    ranges = [tensor.split.part_range(rank, degree) for rank in range(degree)]
    return any(before[1] > after[0] for before, after in pairwise(ranges))


def _shared(stages: list[Stage], tensor: TensorSpec, cell: Cell) -> GradientPiece:
    """A piece over all its holders; of an unsplit tensor only tensor rank 0 of a stage adds."""
    if tensor.split is not None:
        return GradientPiece(tensor.name, cell.box)
    adding = {
        worker
        for stage in stages
        for position, worker in enumerate(stage.workers)
        if stage.coordinates(position).get("tensor", 0) == 0
    }
    silent = tuple(worker for worker in cell.holders if worker not in adding)
    return GradientPiece(tensor.name, cell.box, silent)
