"""Score and break-even; what a change moves."""

from math import exp

import pytest

from holdfast.plan.transition import plan_transition
from holdfast.planner.crossing_routes import whole_plan
from holdfast.planner.pipelines import Sketch
from holdfast.planner.score import (
    ChangeCosts,
    estimate_change,
    estimate_restart,
    missing_at,
    score_of,
)
from holdfast.planner.search_view import Proposal
from holdfast.planner.strategies.repair import shrink_in_place
from support.planning import small_plan, view_of

COSTS = ChangeCosts()


def test_the_score_is_useful_throughput_until_the_next_change():
    assert score_of(10, 2.0, 0.0, 99.0) == 5.0
    assert score_of(10, 2.0, 0.1, 3.0) == pytest.approx(5 * exp(-0.3))


def test_a_late_start_pays_if_changes_are_rare():
    """B is faster and starts later."""
    for rate, later_wins in ((0.01, True), (0.1, False)):
        late, soon = score_of(10, 1.0, rate, 10.0), score_of(10, 2.0, rate, 0.0)
        assert (late > soon) == later_wins


def test_nothing_moves_when_nothing_changes():
    view = view_of(small_plan(2, 2, 2))
    same = Sketch(view.roster.pipes, view.roster.counts)
    assert estimate_change(view, same, None, COSTS).time == 0
    other = Sketch(view.roster.pipes, (5, 7))
    assert estimate_change(view, other, None, COSTS).num_bytes == 0


def test_bytes_are_about_those_of_the_transition():
    plan = small_plan(2, 2, 3)
    view = view_of(plan, ["n0.g1"])
    pipe = shrink_in_place(view, view.roster.pipes[0], "1f1b", [])
    assert pipe is not None
    sketch = Sketch((pipe, view.roster.pipes[1]), view.roster.counts)
    change = estimate_change(view, sketch, None, COSTS)
    new = whole_plan(view, Proposal("", "", sketch))
    moved = plan_transition(plan, new, ["n0.g1"]).num_bytes
    assert change.num_bytes == pytest.approx(moved, rel=0.35)  # unsplit tensors are not moved


def test_a_worker_misses_nothing_of_its_own_seat():
    view = view_of(small_plan(2, 2, 2))
    stage = view.plan.stages[0]
    for position, worker in enumerate(stage.workers):
        args = (stage.first, stage.stop, stage.tensor, 1)
        assert missing_at(view, worker, *args, position) == 0
        assert missing_at(view, worker, *args, 1 - position) > 0


def test_a_restart_loads_everything():
    view = view_of(small_plan(1, 2, 1))
    sketch = Sketch(view.roster.pipes, view.roster.counts)
    change = estimate_restart(view, sketch, COSTS)
    assert change.time > COSTS.restart
    assert change.num_bytes == pytest.approx(
        sum(view.cost.footprint.most_held(a, b, 1) for a, b in ((0, 4), (4, 8))) * 14
    )
