"""One of each kind: the smallest plan that stands for a large regular one.

Replicas of the same shape do the same things, so a dry run needs one of each kind. Two parts of
a plan are alike when renaming stages, workers and micro-batches turns one into the other.
"""

import msgspec

from holdfast.plan.lanes import LaneLayout, LanePart, layout_of
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, slow_workers


def representative(plan: Plan, profile: Profile = Profile()) -> tuple[Plan, Profile]:
    """The plan with one part of each kind, and the profile for what is left of it.

    Kept whole: explicit schedules, as lines may differ, and profiles with exceptional links.
    """
    if plan.schedule.is_explicit or profile.links:
        return plan, profile
    layout, slow = layout_of(plan), slow_workers(plan, profile)
    kinds: dict[tuple[object, ...], LanePart] = {}
    for part in layout.whole_parts:
        speeds = _speeds(layout, part, slow) if slow else ()
        loads = tuple(profile.workload[n] for n in part.micro_batches if profile.workload)
        kinds.setdefault((kind_of(layout, part), speeds, loads), part)
    if len(kinds) == len(layout.whole_parts):
        return plan, profile
    stages = sorted(
        {n for part in kinds.values() for lane in part.lanes for n in layout.lane_stages[lane]}
    )
    batches = sorted(number for part in kinds.values() for number in part.micro_batches)
    smaller = msgspec.structs.replace(
        plan,
        stages=tuple(plan.stages[number] for number in stages),
        routes=tuple(plan.routes[number] for number in batches),
    )
    left = msgspec.structs.replace(
        profile,
        slow={worker: slow[worker] for worker in smaller.workers if worker in slow},
        workload=tuple(profile.workload[number] for number in batches if profile.workload),
    )
    return smaller, left


def _speeds(layout: LaneLayout, part: LanePart, slow: dict[str, float]) -> tuple[float, ...]:
    return tuple(slow.get(worker, 1.0) for lane in part.lanes for worker in layout.lanes[lane])


def kind_of(layout: LaneLayout, part: LanePart) -> tuple[object, ...]:
    """Everything about a part but its names: shapes of stages, workers of each, runs of equal
    routes.
    """
    plan = layout.plan
    stages = list(dict.fromkeys(n for lane in part.lanes for n in layout.lane_stages[lane]))
    local_stage = {number: i for i, number in enumerate(stages)}
    shapes: list[tuple[object, ...]] = []
    for number in stages:
        stage = plan.stages[number]
        lanes = tuple(part.lanes.index(lane) for lane in layout.stage_lanes[number])
        sizes = tuple(len(layout.lanes[lane]) for lane in layout.stage_lanes[number])
        shapes.append((stage.first, stage.stop, stage.axes, lanes, sizes))
    runs: list[tuple[int, tuple[tuple[int, int, int], ...]]] = []
    previous = None
    for micro_batch in part.micro_batches:
        route = plan.routes[micro_batch]
        if route is previous or (runs and route == previous):
            runs[-1] = (runs[-1][0] + 1, runs[-1][1])
            continue
        previous = route
        hops = zip(layout.routes[micro_batch], route, strict=True)
        runs.append((1, tuple((local_stage[n], hop.first, hop.stop) for n, hop in hops)))
    return (tuple(shapes), tuple(runs))
