"""Communication groups a plan needs, as values: a kind and its members in order.

    tensor   workers of one stage that share every operation along the tensor axis
    shard    workers of one stage that share parameters along the shard axis
    reduce   all holders of a slice: its gradients are summed over them
    unit     all workers that hold a unit: they confirm that its reduction is complete
    all      every worker: norm and agreement of a step
    link     two workers that exchange activations, gradients; in this direction

A group lives as long as its members stay, so the groups of two plans are compared by value.
"""

from collections.abc import Iterator
from itertools import pairwise

import msgspec

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
    groups[Group("all", plan.workers)] = None
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
    pairs: dict[tuple[str, str], None] = {}
    previous = None
    for route in plan.routes:
        if route is not previous:
            pairs.update({(a.stage, b.stage): None for a, b in pairwise(route)})
        previous = route
    for before_name, after_name in pairs:
        ends = plan.stage(before_name), plan.stage(after_name)
        for source, target in (*transfers(*ends), *transfers(*ends[::-1])):
            if source != target:
                yield Group("link", (source, target))


def transfers(source: Stage, target: Stage) -> list[tuple[str, str]]:
    """(sender, receiver) pairs of a boundary tensor: each of `target` gets it whole from one of
    `source`.

    Activations are the same on all tensor ranks of a stage, so any of them can send; senders take
    turns where the target has more workers. Shard ranks meet shard ranks, as the layout is row by
    row.
    """
    a, b = source.workers, target.workers
    return [(a[j * len(a) // len(b)], b[j]) for j in range(len(b))]
