"""What hit teams can become."""

import pytest

from holdfast.planner.strategies.pools import (
    CUTS,
    fresh_teams,
    make_pool,
    no_team,
    powers_of_two,
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
