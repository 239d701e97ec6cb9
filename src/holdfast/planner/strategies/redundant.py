"""Redundant copies: every team also holds the units of the team behind it.

The copies take part in every reduction and in the optimizer step, so they stay current, and a
lost stage can be run by its neighbour at once, without a second replica. The price is permanent:
twice the state on every device and twice the reductions. That pays only for jobs with one
replica, or with failures so frequent that any movement of state is too slow.
"""

from collections.abc import Iterator

import msgspec

from holdfast.plan.plan import Plan, Stage
from holdfast.planner.pipelines import Sketch, write_plan
from holdfast.planner.search_view import Proposal, SearchView


def add_copies(view: SearchView) -> Iterator[Proposal]:
    """Every team of every pipeline gets a copy of its successor's units."""
    reason = "a lost stage can be run by the team before it; state and reductions double"
    if not view.whole or all(pipe.depth < 2 for pipe in view.roster.pipes):
        return
    sketch = Sketch(view.roster.pipes, view.roster.counts, view.schedules[0])
    yield Proposal("redundant copies", reason, plan=with_copies(write_plan(sketch, view.plan)))


def with_copies(plan: Plan) -> Plan:
    """Stage k + 1 (the first, for the last team) also on the workers of stage k, as one more
    stage of the replica that no route passes yet.
    """
    copies: list[Stage] = []
    for stages in plan.replicas.values():
        depth = len(stages)
        for k, stage in enumerate(stages if depth > 1 else ()):
            successor = stages[(k + 1) % depth]
            if stage.axes == successor.axes:
                copies.append(
                    Stage(
                        stage.replica,
                        depth + k,
                        successor.first,
                        successor.stop,
                        stage.workers,
                        stage.axes,
                    )
                )
    return msgspec.structs.replace(plan, stages=(*plan.stages, *copies))
