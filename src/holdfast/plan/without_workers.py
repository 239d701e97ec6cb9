"""The plan that is left when workers are gone: the same stages without the broken ones.

No state moves. Every micro-batch that passed a lost stage passes its units elsewhere: on one stage
if one holds them all, else on several in turn; the least loaded is taken, and a micro-batch that
needs several substitutes stays in one replica where it can.

A route passes a stage once. Where the substitutes of one hop leave none for another, the whole
route is made anew, always on to the stage that reaches farthest: that fails only if no stage that
is left has some unit.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Hop, Plan, Route, Stage


def without_workers(plan: Plan, gone: Collection[str]) -> tuple[Plan, tuple[Stage, ...]]:
    """The plan without the stages that `gone` workers take part in, and those stages."""
    lost = tuple(stage for stage in plan.stages if any(w in gone for w in stage.workers))
    if lost and plan.schedule.is_explicit:
        raise HoldfastError("an explicit schedule is written for its workers: it cannot lose any")
    names = {stage.name for stage in lost}
    left = [stage for stage in plan.stages if stage.name not in names]
    load = {stage.name: 0.0 for stage in left}
    for route in plan.routes:
        for hop in route:
            if hop.stage in load:
                load[hop.stage] += 1 / plan.stage(hop.stage).shard
    routes = tuple(_detour(route, names, left, load) for route in plan.routes)
    return msgspec.structs.replace(plan, stages=tuple(left), routes=routes), lost


def _detour(
    route: Route, lost: Collection[str], left: Sequence[Stage], load: dict[str, float]
) -> Route:
    if all(hop.stage not in lost for hop in route):
        return route
    found = _hop_by_hop(route, lost, left, load) or _made_anew(route, left, load)
    kept = [hop.stage for hop in route if hop.stage not in lost]
    shards = {stage.name: stage.shard for stage in left}
    for hop in found:
        if hop.stage not in kept:
            load[hop.stage] += 1 / shards[hop.stage]
    return found


def _hop_by_hop(
    route: Route, lost: Collection[str], left: Sequence[Stage], load: Mapping[str, float]
) -> Route:
    """All hops on stages that are left stay; empty: a stage would be passed twice."""
    kept = {hop.stage for hop in route if hop.stage not in lost}
    hops: list[Hop] = []
    replica = -1
    for hop in route:
        if hop.stage not in lost:
            hops.append(hop)
            continue
        at = hop.first
        while at < hop.stop:
            used = kept | {passed.stage for passed in hops}
            stage = _substitute(hop, at, left, load, replica, used)
            if stage is None:
                return ()
            stop = min(stage.stop, hop.stop)
            hops.append(Hop(stage.name, at, stop))
            replica, at = stage.replica, stop
    return tuple(hops)


def _substitute(
    hop: Hop,
    at: int,
    left: Sequence[Stage],
    load: Mapping[str, float],
    replica: int,
    used: Collection[str],
) -> Stage | None:
    able = [s for s in left if s.first <= at < s.stop and s.name not in used]
    return min(
        able,
        key=lambda s: (s.stop < hop.stop, s.replica != replica, load[s.name], s.replica, s.index),
        default=None,
    )


def _made_anew(route: Route, left: Sequence[Stage], load: Mapping[str, float]) -> Route:
    hops: list[Hop] = []
    at, end = route[0].first, route[-1].stop
    while at < end:
        able = [s for s in left if s.first <= at < s.stop]
        if not able:
            hop = next(hop for hop in route if hop.first <= at < hop.stop)
            raise HoldfastError(
                f"{hop.stage} is lost, and no stage that is left can take its units "
                f"{at}-{hop.stop - 1} over"
            )
        stage = min(able, key=lambda s: (-s.stop, load[s.name], s.replica, s.index))
        hops.append(Hop(stage.name, at, stage.stop))
        at = stage.stop
    return tuple(hops)
