"""Plans of which one part has crossing routes: its time, and the whole plan.

The part is scheduled and timed as it is; the pipelines beside it are costed by kind. Reductions
span both, so they are laid out over the stages of both.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link
from holdfast.plan.timeline import Timeline, evaluate
from holdfast.planner.allreduce_timeline import HeldStage
from holdfast.planner.pipelines import Sketch, write_plan
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.step_cost import PipeKind


def mixed_time(view: SearchView, others: Sketch | None, part: Plan) -> float:
    """Of a step: the part with crossing routes, and separate pipelines beside it."""
    cost, profile = view.cost, view.cost.profile
    slow = {worker: factor for worker, factor in view.health.slow if worker in part.seats}
    bare = msgspec.structs.replace(profile, slow=slow, reduce=Link(), update=0.0)
    timeline = evaluate(part, bare)
    held = _held(timeline)
    ends = [timeline.epilogue.computed]
    for (kind, count), number in _kinds(view, others).items():
        chain = cost.chain(kind, count, part.schedule.kind)
        held += cost.held_by(kind, number, chain)
        ends.append(chain.end)
    update = profile.optimizer + _update(view, others, part)
    stages = [(stage.first, stage.stop, stage.workers) for stage in part.stages]
    for pipe, count in zip(others.pipes, others.counts, strict=True) if others is not None else ():
        cuts = zip(pipe.teams, pairwise(pipe.bounds), strict=True)
        stages += [(first, stop, team.workers) for team, (first, stop) in cuts if count]
    reduced = cost.allreduces.end(held, cost.allreduces.rings(profile, stages))
    return max(*ends, reduced) + profile.agree + update


def _kinds(view: SearchView, others: Sketch | None) -> dict[tuple[PipeKind, int], int]:
    """How many pipelines there are of each kind and number of micro-batches."""
    numbers: dict[tuple[PipeKind, int], int] = {}
    for pipe, count in zip(others.pipes, others.counts, strict=True) if others is not None else ():
        key = (view.cost.kind_of(pipe), count)
        numbers[key] = numbers.get(key, 0) + 1
    return numbers


def _held(timeline: Timeline) -> list[HeldStage]:
    last: dict[int, tuple[float, float]] = {}
    program = timeline.program
    for order in program.lanes:
        for number in order:
            kind, stage, _ = program.ops[number]
            if kind in ("B", "W"):
                last[stage] = (timeline.start[number], timeline.end[number])
    stages = timeline.layout.plan.stages
    return [
        HeldStage(s.first, s.stop, s.tensor * s.shard, *last.get(n, (0.0, 0.0)))
        for n, s in enumerate(stages)
    ]


def _update(view: SearchView, others: Sketch | None, part: Plan) -> float:
    """Of the worker that holds most. A worker with several stages holds all of them."""
    if not view.cost.profile.update:
        return 0.0
    held: dict[str, int] = {}
    for stage in part.stages:
        size = view.cost.footprint.most_held(stage.first, stage.stop, stage.tensor, stage.shard)
        for worker in stage.workers:
            held[worker] = held.get(worker, 0) + size
    kinds = [view.cost.kind_of(pipe) for pipe in others.pipes] if others is not None else []
    shapes = list(dict.fromkeys((kind.teams, kind.bounds) for kind in kinds))
    beside = view.cost.update_time(shapes) if shapes else 0.0
    return max(view.cost.profile.update * max(held.values()), beside)


def whole_plan(view: SearchView, proposal: Proposal) -> Plan:
    """The proposal written out."""
    if proposal.plan is None:
        sketch = proposal.sketch
        return view.plan if sketch is None else _unchanged(view, sketch)
    if proposal.sketch is None:
        return proposal.plan
    return joined_plan([proposal.plan, _alone(view, proposal.sketch)])


def _unchanged(view: SearchView, sketch: Sketch) -> Plan:
    """The plan itself where the sketch says the same, so that nothing differs by accident."""
    roster = view.roster
    same = (roster.pipes, roster.counts, view.plan.schedule.kind)
    if view.whole and (sketch.pipes, sketch.counts, sketch.kind) == same:
        return view.plan
    return write_plan(sketch, view.plan)


def _alone(view: SearchView, sketch: Sketch) -> Plan:
    base = msgspec.structs.replace(view.plan, routes=view.plan.routes[: sum(sketch.counts)])
    return write_plan(sketch, base)


def joined_plan(plans: Sequence[Plan]) -> Plan:
    """One plan of parts that share nothing; everything but stages and routes is the first's."""
    return msgspec.structs.replace(
        plans[0],
        stages=tuple(stage for plan in plans for stage in plan.stages),
        routes=tuple(route for plan in plans for route in plan.routes),
    )
