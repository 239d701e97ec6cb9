"""What each rule proposes, and what it cannot."""

from collections.abc import Iterator

import pytest

from holdfast.planner.peers import rules
from holdfast.planner.pipelines import Sketch
from holdfast.planner.search_view import Proposal
from support.planning import small_plan, view_of


def sketches(proposals: Iterator[Proposal]) -> list[Sketch]:
    return [p.sketch for p in proposals if p.sketch is not None and not p.refusal]


def test_nothing_wrong_nothing_changed():
    plan = small_plan(2, 2, 2)
    for rule in (rules.varuna, rules.oobleck, rules.recycle, rules.malleus, rules.ft_hsdp):
        view = view_of(plan)
        first = next(rule(view))
        assert first.strategy == "carry on"
        assert first.sketch is not None
        assert first.sketch.pipes == view.roster.pipes


def test_varuna_tries_every_depth_and_leaves_the_rest_idle():
    found = sketches(rules.varuna(view_of(small_plan(3, 2, 2), ["n0.g1"])))
    depths = {(len(s.pipes), s.pipes[0].depth) for s in found}
    assert {(5, 1), (2, 2), (1, 3), (1, 5)} <= depths


def test_bamboo_gives_the_units_of_a_lost_team_to_the_one_before():
    view = view_of(small_plan(2, 4, 1), ["n0.g2"])
    (sketch,) = sketches(rules.bamboo(view))
    assert sketch.pipes[0].depth == 3
    assert sketch.pipes[0].bounds == (0, 2, 6, 8)


def test_bamboo_drops_a_pipeline_that_lost_two_neighbours():
    (sketch,) = sketches(rules.bamboo(view_of(small_plan(2, 4, 1), ["n0.g1", "n0.g2"])))
    assert [pipe.replica for pipe in sketch.pipes] == [1]


def test_oobleck_shortens_a_pipeline_and_keeps_whole_teams_only():
    found = sketches(rules.oobleck(view_of(small_plan(2, 2, 2), ["n0.g1"])))
    assert found
    for sketch in found:
        assert all(team.tensor == 2 for pipe in sketch.pipes for team in pipe.teams)


@pytest.mark.parametrize("rule", [rules.resihp, rules.malleus])
def test_tensor_groups_are_powers_of_two(rule):
    view = view_of(small_plan(2, 2, 4), ["n0.g1"])
    degrees = {team.tensor for s in sketches(rule(view)) for pipe in s.pipes for team in pipe.teams}
    assert 3 not in degrees
    assert degrees & {1, 2}


def test_one_partition_cuts_all_replicas_alike():
    view = view_of(small_plan(2, 2, 2), [], {"n0.g1": 3.0})
    cut = [p.sketch for p in rules.resihp(view) if p.strategy == "cut alike"]
    assert cut
    for sketch in cut:
        assert sketch is not None
        assert len({pipe.bounds for pipe in sketch.pipes}) == 1


def test_ft_hsdp_drops_the_hit_replica():
    found = sketches(rules.ft_hsdp(view_of(small_plan(3, 2, 2), ["n0.g1"])))
    assert [pipe.replica for pipe in found[0].pipes] == [1, 2]
