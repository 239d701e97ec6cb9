"""Teams in pipelines of any lengths."""

from holdfast.planner.strategies.arrange import arrange, deal, merge, ways_to_cut
from support.planning import small_plan, view_of


def test_all_partitions_of_few_teams():
    ways = ways_to_cut(5, 2)
    assert len(ways) == len(set(ways)) == 7
    assert all(sum(way) == 5 for way in ways)


def test_many_teams_are_cut_nearly_evenly():
    ways = ways_to_cut(64, 8, True)
    assert (8,) * 8 in ways
    assert all(sum(way) <= 64 for way in ways)
    assert len(ways) < 40


def test_a_healthy_layout_is_left_alone():
    view = view_of(small_plan(2, 2, 2))
    assert list(arrange(view)) == []
    view.improve = True
    assert list(arrange(view))


def test_a_hit_replica_is_arranged_anew_and_the_others_stay():
    view = view_of(small_plan(12, 2, 1), ["n0.g0"])
    proposals = list(arrange(view))
    assert proposals
    untouched = set(view.roster.pipes[1:])
    assert any(untouched <= set(p.sketch.pipes) for p in proposals)
    for proposal in proposals:
        workers = [w for pipe in proposal.sketch.pipes for t in pipe.teams for w in t.workers]
        assert len(set(workers)) == len(workers)
        assert "n0.g0" not in workers
        assert sum(proposal.sketch.counts) == view.total


def test_spares_form_pipelines():
    view = view_of(small_plan(2, 2, 1), [], {}, ["n7.g0", "n7.g1"])
    assert any(len(p.sketch.pipes) >= 3 for p in arrange(view))


def test_enough_copies_are_kept_if_asked():
    view = view_of(small_plan(2, 2, 1), ["n0.g0"])
    view.wanted = 2
    assert all(len(p.sketch.pipes) >= 2 for p in arrange(view))


def test_dealing_stops_where_nothing_fits():
    view = view_of(small_plan(1, 2, 1, limit=1000))
    assert deal(view, view.roster.pipes[0].teams, [2], "1f1b", iter([0])) is None


def test_hit_pipelines_are_merged():
    view = view_of(small_plan(4, 3, 1), ["n0.g0", "n0.g3"])
    lengths = [sorted(p.depth for p in m.sketch.pipes) for m in merge(view)]
    assert lengths == [[2, 2, 3, 3], [1, 1, 2, 3, 3]]
