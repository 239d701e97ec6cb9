"""Regular layouts from all teams."""

from holdfast.planner.strategies.regular import regular
from support.planning import small_plan, view_of


def test_a_healthy_layout_is_left_alone():
    view = view_of(small_plan(4, 2, 1))
    assert list(regular(view)) == []
    view.improve = True
    assert list(regular(view))


def test_pipelines_have_one_length_and_no_dead_worker():
    view = view_of(small_plan(6, 2, 1), ["n0.g0"])
    for proposal in regular(view):
        depths = {pipe.depth for pipe in proposal.sketch.pipes}
        workers = [w for p in proposal.sketch.pipes for t in p.teams for w in t.workers]
        assert len(depths) == 1
        assert len(set(workers)) == len(workers)
        assert "n0.g0" not in workers
        assert sum(proposal.sketch.counts) == view.total


def test_wanted_copies_are_kept():
    view = view_of(small_plan(2, 3, 1), ["n0.g0"])
    view.wanted = 2
    assert all(len(p.sketch.pipes) >= 2 for p in regular(view))
