"""Communication groups a plan needs, as values: a kind and its members in order.

    tensor   workers of one stage that share every operation along the tensor axis
    shard    workers of one stage that share parameters along the shard axis: gathered over them
    scatter  the same workers: gradients are summed over them, each getting its part
    reduce   all holders of a slice: its gradients are summed over them
    unit     all workers that hold a unit: they confirm that its reduction is complete
    all      every worker, or a part of them in a tree: norm and agreement of a step
    link     two workers that exchange activations, gradients; in this direction

A group lives as long as its members stay, so the groups of two plans are compared by value.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from holdfast.plan.agreement_tree import agreement_groups
from holdfast.plan.exchanges import unit_exchanges
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan, Stage


class Group(msgspec.Struct, frozen=True):
    kind: str
    members: tuple[str, ...]


def plan_groups(plan: Plan) -> tuple[Group, ...]:
    """Every group of two or more, once, in a fixed order."""
    groups: dict[Group, None] = {}
    for stage in plan.stages:
        groups.update(dict.fromkeys(_axis_groups(stage)))
    groups.update(dict.fromkeys(_holder_groups(plan)))
    groups.update(dict.fromkeys(_links(plan)))
    groups.update((Group("all", members), None) for members in agreement_groups(plan.workers))
    return tuple(group for group in groups if len(group.members) > 1)


def groups_by_worker(plan: Plan) -> dict[str, int]:
    """How many groups every worker takes part in."""
    counts = dict.fromkeys(plan.workers, 0)
    for group in plan_groups(plan):
        for worker in group.members:
            counts[worker] += 1
    return counts


def _axis_groups(stage: Stage) -> Iterator[Group]:
    for axis, degree in stage.axes:
        if degree > 1:
            for position in range(len(stage.workers)):
                yield Group(axis, stage.peers(axis, position))
                if axis == "shard":
                    yield Group("scatter", stage.peers(axis, position))


def _holder_groups(plan: Plan) -> Iterator[Group]:
    """By unit; units that lie on the same stages and are cut alike have the same groups."""
    holders = HolderMap(plan)
    seen: set[tuple[object, ...]] = set()
    for number in range(len(plan.units)):
        stages = holders.bucket_stages[number]
        shapes = tuple((tensor.shape, tensor.split) for tensor in holders.buckets[number])
        if (stages, shapes) in seen:
            continue
        seen.add((stages, shapes))
        workers = (worker for stage in stages for worker in plan.stages[stage].workers)
        yield Group("unit", tuple(dict.fromkeys(workers)))
        for exchange in unit_exchanges(holders, number):
            yield Group("reduce", exchange.members)


def _links(plan: Plan) -> Iterator[Group]:
    pairs: dict[tuple[tuple[str, ...], tuple[str, ...]], None] = {}
    previous = None
    for number, route in enumerate(plan.routes):
        if route is not previous or plan.shard_ranks:
            ends = [plan.computing(plan.stage(hop.stage), number) for hop in route]
            pairs.update(dict.fromkeys(pairwise(ends)))
        previous = route
    for before, after in pairs:
        for source, target in (*transfers(before, after), *transfers(after, before)):
            if source != target:
                yield Group("link", (source, target))


def transfers(source: Sequence[str], target: Sequence[str]) -> list[tuple[str, str]]:
    """(sender, receiver) pairs of a boundary tensor between the workers that compute a micro-batch
    on two stages: each of `target` gets it whole from one of `source`.

    Activations are the same on all tensor ranks of a stage, so any of them can send; senders take
    turns where the target has more workers.
    """
    return [(source[j * len(source) // len(target)], target[j]) for j in range(len(target))]


def row_transfers(source: Stage, target: Stage) -> Iterator[list[tuple[str, str]]]:
    """The transfers of every micro-batch in turn, as they are dealt out to the shard ranks of two
    stages that all of them pass.
    """
    for rank in range(max(source.shard, target.shard)):
        yield transfers(source.row(rank % source.shard), target.row(rank % target.shard))
