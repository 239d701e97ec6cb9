"""One split of the units for all replicas."""

from holdfast.planner.strategies.cut_alike import cut_alike
from support.planning import small_plan, view_of


def test_all_replicas_are_cut_by_the_weakest_team_of_every_stage():
    view = view_of(small_plan(2, 2, 2), [], {"n0.g1": 3.0})
    (proposal,) = cut_alike(view)
    sketch = proposal.sketch
    assert sketch is not None
    assert len({pipe.bounds for pipe in sketch.pipes}) == 1
    usual = view.roster.pipes[0].bounds[1]
    assert sketch.pipes[0].bounds[1] < usual
    assert sum(sketch.counts) == view.total


def test_dead_workers_leave_their_teams():
    view = view_of(small_plan(2, 2, 2), ["n0.g1"])
    (proposal,) = cut_alike(view)
    assert proposal.sketch is not None
    assert proposal.sketch.pipes[0].teams[0].workers == ("n0.g0",)


def test_a_lost_team_leaves_nothing_to_cut_alike():
    assert list(cut_alike(view_of(small_plan(2, 2, 1), ["n0.g1"]))) == []
    assert list(cut_alike(view_of(small_plan(2, 2, 1)))) == []
