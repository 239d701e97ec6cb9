"""Every hit pipeline repaired by itself."""

from holdfast.planner.strategies.repair import (
    cut_in_two,
    fill,
    filled,
    repair_pipelines,
    shorten,
    shrink,
    shrink_in_place,
    split_off,
)
from support.planning import small_plan, view_of


def first(view):
    return view.roster.pipes[0]


def test_a_team_shrinks_and_gives_units_away():
    view = view_of(small_plan(2, 2, 3), ["n0.g1"])
    pipe = shrink(view, first(view), "1f1b", [])
    assert [team.tensor for team in pipe.teams] == [2, 3]
    assert pipe.bounds[1] < 4
    assert shrink_in_place(view, first(view), "1f1b", []).bounds == (0, 4, 8)


def test_a_lost_team_cannot_shrink_in_place():
    view = view_of(small_plan(2, 2, 1), ["n0.g1"])
    assert shrink_in_place(view, first(view), "1f1b", []) is None
    assert shrink(view, first(view), "1f1b", []).depth == 1
    assert shorten(view, first(view), "1f1b", []).depth == 1


def test_left_overs_become_a_stage():
    view = view_of(small_plan(2, 1, 3), [], {"n0.g1": 3.0})
    pipe = split_off(view, first(view), "1f1b", [])
    assert [team.workers for team in pipe.teams] == [("n0.g0", "n0.g2"), ("n0.g1",)]
    healthy = view_of(small_plan(2, 1, 3), ["n0.g1"])
    assert split_off(healthy, first(healthy), "1f1b", []) is None  # no worker is left over


def test_two_small_teams_instead_of_a_wide_one():
    view = view_of(small_plan(2, 1, 3), ["n0.g1"])
    assert [t.tensor for t in cut_in_two(view, first(view), "1f1b", []).teams] == [1, 1]


def test_a_spare_of_the_same_node_takes_the_seat():
    view = view_of(small_plan(2, 1, 3), ["n0.g1"], {}, ["n5.g0", "n0.g9"])
    spares = list(view.spares)
    pipe = fill(view, first(view), "1f1b", spares)
    assert pipe.teams[0].workers == ("n0.g0", "n0.g9", "n0.g2")
    assert spares == ["n5.g0"]


def test_a_tensor_group_does_not_leave_its_node():
    view = view_of(small_plan(2, 1, 3), ["n0.g1"], {}, ["n5.g0"])
    assert filled(view, first(view).teams[0], ["n5.g0"]).workers == ("n0.g0", "n0.g2")
    single = view_of(small_plan(2, 2, 1), ["n0.g1"], {}, ["n5.g0"])
    assert filled(single, first(single).teams[1], ["n5.g0"]).workers == ("n5.g0",)


def test_all_mends_are_proposed():
    view = view_of(small_plan(3, 2, 3), ["n0.g1", "n2.g0"], {}, ["n0.g9"])
    names = {proposal.strategy for proposal in repair_pipelines(view)}
    assert {"use a spare", "shrink", "shorten", "drop the replica", "repair each"} <= names


def test_nothing_to_mend():
    assert list(repair_pipelines(view_of(small_plan(2, 2, 2)))) == []
