import pytest

from holdfast.observe.action_times import last_whole_step, read_times
from holdfast.observe.measured_view import (
    draw_last_step,
    measured_profile,
    measured_view,
    relative_speeds,
)
from holdfast.plan.timeline import evaluate
from support.measured import write_times
from support.timelines import rerouted_plan, small_plan, small_timeline


@pytest.mark.parametrize("plan", [small_plan(), rerouted_plan()])
def test_a_timeline_that_was_measured_is_predicted(tmp_path, plan):
    """Times that follow the timeline exactly lead back to it."""
    timeline = small_timeline(plan, optimizer=3.0)
    write_times(timeline, tmp_path, range(3))
    steps = read_times(tmp_path, 0, 3)
    costs = measured_profile([one for found in steps.values() for one in found], plan)
    assert evaluate(plan, costs).iteration_time == pytest.approx(timeline.iteration_time, rel=0.01)
    view = measured_view(last_whole_step(steps), plan)
    assert view.end == pytest.approx(timeline.iteration_time, rel=1e-3)
    assert view.has_guests == (plan == rerouted_plan())
    drawn = draw_last_step(steps, {1: plan})
    assert drawn.step == 2
    assert drawn.measured.startswith("<svg")
    assert drawn.predicted_s == pytest.approx(drawn.measured_s, rel=0.01)


def test_a_slow_worker_is_seen_beside_its_like(tmp_path):
    plan = small_plan()
    write_times(small_timeline(plan, slow={"r1.s2": 2.0}), tmp_path, range(2))
    speeds = relative_speeds(read_times(tmp_path, 0, 2), plan)
    slow = plan.stage("r1.s2").workers[0]
    assert speeds[slow] == pytest.approx(0.75, rel=0.01)
    assert speeds[plan.stage("r1.s1").workers[0]] == pytest.approx(1.0, rel=0.01)


def test_without_a_plan_nothing_is_drawn(tmp_path):
    write_times(small_timeline(), tmp_path, range(1))
    assert draw_last_step(read_times(tmp_path, 0, 1), {}) is None
    assert draw_last_step({}, {1: small_plan()}) is None
