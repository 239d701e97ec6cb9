"""Workers take the seats where they hold most."""

import msgspec
import numpy as np

from holdfast.planner.pipelines import Pipe, Sketch
from holdfast.planner.score import ChangeCosts, estimate_change
from holdfast.planner.seat_assignment import assigned, assignment, seated
from support.planning import small_plan, view_of


def test_the_cheapest_assignment_is_found():
    assert assignment(np.array([[4.0, 1.0], [2.0, 9.0]])) == [1, 0]


def test_equals_stay_where_they_are():
    assert assignment(np.zeros((4, 4))) == [0, 1, 2, 3]


def test_workers_return_to_their_ranks():
    view = view_of(small_plan(2, 2, 3))
    team = view.roster.pipes[0].teams[0]
    turned = msgspec.structs.replace(team, workers=team.workers[::-1])
    assert seated(view, turned, 0, 4) == team


def test_teams_trade_places_until_nothing_moves():
    view = view_of(small_plan(2, 2, 2))
    pipes = view.roster.pipes
    teams = [team for pipe in pipes for team in pipe.teams]
    mixed = (
        Pipe(0, (teams[3], teams[0]), pipes[0].bounds),
        Pipe(1, (teams[2], teams[1]), pipes[1].bounds),
    )
    sketch = Sketch(mixed, view.roster.counts)
    costs = ChangeCosts()
    assert estimate_change(view, sketch, None, costs).num_bytes > 0
    better = assigned(view, sketch)
    assert estimate_change(view, better, None, costs).num_bytes == 0
    assert {t.workers for p in better.pipes for t in p.teams} == {t.workers for t in teams}


def test_pipelines_that_did_not_change_take_no_part():
    view = view_of(small_plan(2, 2, 2))
    sketch = Sketch(view.roster.pipes, view.roster.counts)
    assert assigned(view, sketch) == sketch
