"""What hit teams can become."""

import pytest

from holdfast.planner.strategies.pools import (
    CUTS,
    fresh_teams,
    make_pool,
    no_team,
    powers_of_two,
    recuts,
    two_fast_teams,
)
from support.planning import small_plan, view_of


@pytest.mark.parametrize("cut", [cut for _, cut in CUTS])
def test_no_worker_is_in_two_teams_and_none_is_dead(cut):
    view = view_of(small_plan(3, 2, 3), ["n0.g1"], {"n1.g2": 2.0}, ["n9.g0", "n9.g1"])
    pool = make_pool(view, view.touched, cut)
    workers = [worker for team in pool for worker in team.workers]
    assert len(set(workers)) == len(workers)
    assert "n0.g1" not in workers
    assert all(len(team.workers) == team.tensor * team.shard for team in pool)


def test_cuts():
    view = view_of(small_plan(1, 1, 3), [], {"n0.g2": 2.0})
    team = view.roster.pipes[0].teams[0]
    assert [t.tensor for t in powers_of_two(view, list(team.workers), team)] == [2, 1]
    fast = two_fast_teams(view, list(team.workers), team)
    assert [t.workers for t in fast] == [("n0.g0",), ("n0.g1",)]
    assert no_team(view, list(team.workers), team) == []


def test_fresh_teams_stay_on_their_node():
    view = view_of(small_plan(1, 1, 3))
    teams = fresh_teams(view, ["n4.g0", "n4.g1", "n5.g0", "n4.g2", "n4.g3"])
    assert [team.workers for team in teams] == [
        ("n4.g0", "n4.g1", "n4.g2"),
        ("n4.g3",),
        ("n5.g0",),
    ]


def sizes_of(view):
    """The degrees of all teams, for every way to cut them anew."""
    everything = range(len(view.roster.pipes))
    pools = [make_pool(view, everything, cut, whole) for _, cut, whole in recuts(view)]
    return [sorted((team.tensor, team.slow) for team in pool) for pool in pools]


def test_few_teams_are_cut_each_on_its_own():
    view = view_of(small_plan(2, 1, 3), [], {"n0.g1": 1.5, "n1.g1": 2.0})
    found = sizes_of(view)
    assert [(1, 1.0), (1, 1.0), (1, 1.5), (1, 2.0), (2, 1.0)] in found, "1+1+1 and 2+1"
    assert sorted([(3, 1.5), (2, 1.0), (1, 2.0)]) in found, "whole and 2+1"


def test_what_is_dead_is_cut_into_nothing():
    plan = small_plan(3, 1, 2)
    view = view_of(plan, plan.workers[:3])
    assert [(1, 1.0), (2, 1.0)] in sizes_of(view)
    assert all(sum(tensor for tensor, _ in pool) <= 3 for pool in sizes_of(view))


def test_many_teams_are_not_cut_each_on_its_own():
    few, many = (view_of(small_plan(n, 1, 3), ["n0.g0"]) for n in (2, 6))
    assert len(list(recuts(few))) > len(list(recuts(many)))
