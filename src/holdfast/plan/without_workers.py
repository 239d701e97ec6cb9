"""The plan that is left when workers are gone: the same stages without the broken ones.

No state moves. Every micro-batch that passed a lost stage passes its units elsewhere: on one stage
if one holds them all, else on several in turn; the least loaded is taken, and a micro-batch that
needs several substitutes stays in one replica where it can.
"""

from collections.abc import Collection, Sequence

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
    load = {stage.name: 0 for stage in left}
    for route in plan.routes:
        for hop in route:
            if hop.stage in load:
                load[hop.stage] += 1
    routes = tuple(_detour(route, names, left, load) for route in plan.routes)
    return msgspec.structs.replace(plan, stages=tuple(left), routes=routes), lost


def _detour(
    route: Route, lost: Collection[str], left: Sequence[Stage], load: dict[str, int]
) -> Route:
    if all(hop.stage not in lost for hop in route):
        return route
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
            stop = min(stage.stop, hop.stop)
            hops.append(Hop(stage.name, at, stop))
            load[stage.name] += 1
            replica, at = stage.replica, stop
    return tuple(hops)


def _substitute(
    hop: Hop,
    at: int,
    left: Sequence[Stage],
    load: dict[str, int],
    replica: int,
    used: Collection[str],
) -> Stage:
    able = [s for s in left if s.first <= at < s.stop and s.name not in used]
    if not able:
        raise HoldfastError(
            f"{hop.stage} is lost, and no stage that is left can take its units "
            f"{at}-{hop.stop - 1} over"
        )
    return min(
        able,
        key=lambda s: (s.stop < hop.stop, s.replica != replica, load[s.name], s.replica, s.index),
    )
