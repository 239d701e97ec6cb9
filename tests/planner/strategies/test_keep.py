"""No worker leaves."""

from holdfast.planner.strategies.keep import carry_on, move_micro_batches, move_units
from support.planning import small_plan, view_of


def test_a_dead_worker_ends_carrying_on():
    (proposal,) = carry_on(view_of(small_plan(2, 2, 1), ["n0.g0"]))
    assert proposal.refusal == "a worker of the plan is dead"
    assert list(move_micro_batches(view_of(small_plan(2, 2, 1), ["n0.g0"]))) == []


def test_work_moves_away_from_the_slow():
    view = view_of(small_plan(2, 2, 1), [], {"n0.g0": 2.0})
    (same,) = carry_on(view)
    (fewer,) = move_micro_batches(view)
    (units,) = move_units(view)
    times = [view.cost.step_time(p.sketch) for p in (same, fewer, units)]
    assert times == sorted(times, reverse=True)
    first, second = units.sketch.pipes[0].bounds[1], units.sketch.pipes[1].bounds[1]
    assert first < second
