"""A new start from whatever is alive."""

from holdfast.planner.strategies.restart import live_teams, restart
from support.planning import small_plan, view_of


def test_live_workers_form_pipelines():
    view = view_of(small_plan(2, 2, 2), ["n0.g0", "n1.g0"], {}, ["n7.g0"])
    teams = live_teams(view)
    workers = [w for team in teams for w in team.workers]
    assert sorted(workers) == ["n0.g1", "n0.g2", "n0.g3", "n1.g1", "n1.g2", "n1.g3", "n7.g0"]
    proposals = list(restart(view))
    assert all(p.restores and p.sketch is not None for p in proposals)


def test_no_worker_alive_is_said():
    plan = small_plan(1, 2, 1)
    (proposal,) = restart(view_of(plan, ["n0"]))
    assert proposal.refusal == "no worker is alive"


def test_no_room_is_said():
    plan = small_plan(1, 2, 1, limit=1000)
    proposals = list(restart(view_of(plan, ["n0.g0"])))
    assert [p.refusal for p in proposals] == ["the live workers cannot hold the model"]
