"""Who is in which pipeline, and where the weak ones stand."""

from holdfast.planner.strategies.lineups import (
    all_places,
    by_rate,
    dealt,
    other_lineups,
    usual_lineups,
)
from support.planning import small_plan, view_of


def situation():
    """Six teams of one worker each, the first and the fourth slow."""
    view = view_of(small_plan(2, 3, 1), [], {"n0.g0": 2.0, "n0.g3": 3.0})
    return view, [team for pipe in view.roster.pipes for team in pipe.teams]


def slow_downs(teams):
    return [team.slow for team in teams]


def test_weak_teams_are_gathered_behind_or_in_front():
    view, teams = situation()
    lineups = [slow_downs(teams) for teams in usual_lineups(view, teams, [3, 3])]
    assert lineups[:3] == [
        [2.0, 1.0, 1.0, 3.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 1.0, 2.0, 3.0],
        [1.0, 1.0, 1.0, 3.0, 2.0, 1.0],
    ]


def test_others_stay_in_their_pipelines():
    view, teams = situation()
    behind, before = other_lineups(view, teams, [3, 3])
    assert slow_downs(behind) == [1.0, 1.0, 2.0, 1.0, 1.0, 3.0]
    assert slow_downs(before) == [2.0, 1.0, 1.0, 3.0, 1.0, 1.0]
    for lineup in (behind, before):
        parts = zip(dealt(lineup, [3, 3]), dealt(teams, [3, 3]), strict=True)
        assert all(set(mine) == set(theirs) for mine, theirs in parts)


def test_all_places_of_few_weak_teams():
    view, teams = situation()
    places = [tuple(slow_downs(order)) for order in all_places(view, teams[:4])]
    assert len(places) == len(set(places)) == 12
    strong = [team for team in by_rate(view, teams) if team.slow == 1.0]
    assert [slow_downs(order) for order in all_places(view, strong)] == [[1.0] * 4]


def test_few_teams_of_many_speeds_stand_in_every_order_where_there_is_time():
    slow = {"n0.g0": 1.25, "n0.g1": 1.5, "n0.g2": 2.0}
    view = view_of(small_plan(2, 2, 1), [], slow)
    teams = [team for pipe in view.roster.pipes for team in pipe.teams]
    assert list(all_places(view, teams)) == []
    view.thorough = True
    assert len({tuple(slow_downs(order)) for order in all_places(view, teams)}) == 24
