"""Workers to roles, with the fewest bytes moved.

A sketch says which teams there are and where a team of each kind sits; teams of one kind (tensor
and shard degree, speed) can trade places, and so can the workers inside a team. Both are
assignment problems, solved exactly (Hungarian algorithm), with what a worker would have to
receive as the cost. Pipelines that did not change take no part.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from holdfast.planner.pipelines import Sketch, Team
from holdfast.planner.score import missing_at
from holdfast.planner.search_view import SearchView

MAX_SEATS = 128
"""Stages that trade places at once; beyond that workers stay where the search put them."""

_Slot = tuple[int, int]
"""Pipeline, stage."""


def assigned(view: SearchView, sketch: Sketch) -> Sketch:
    """The same sketch with teams and workers in the places where they hold most already."""
    old = frozenset(view.roster.pipes)
    new = [n for n, pipe in enumerate(sketch.pipes) if pipe not in old]
    slots: dict[tuple[int, int, float], list[_Slot]] = {}
    for n in new:
        for k, team in enumerate(sketch.pipes[n].teams):
            slots.setdefault((team.tensor, team.shard, team.slow), []).append((n, k))
    teams = {n: list(pipe.teams) for n, pipe in enumerate(sketch.pipes) if n in new}
    for places in slots.values():
        if len(places) <= MAX_SEATS:
            for (n, k), team in zip(places, _traded(view, sketch, places), strict=True):
                teams[n][k] = team
    pipes = [
        msgspec.structs.replace(pipe, teams=tuple(teams[n])) if n in teams else pipe
        for n, pipe in enumerate(sketch.pipes)
    ]
    return msgspec.structs.replace(sketch, pipes=tuple(pipes))


def _traded(view: SearchView, sketch: Sketch, places: Sequence[_Slot]) -> list[Team]:
    """The teams of these places, in the order of least movement."""
    teams = [sketch.pipes[n].teams[k] for n, k in places]
    ranges = [(sketch.pipes[n].bounds[k], sketch.pipes[n].bounds[k + 1]) for n, k in places]
    different = list(dict.fromkeys(ranges))
    known = [{units: _cost(view, team, *units) for units in different} for team in teams]
    costs = np.array([[row[units] for units in ranges] for row in known])
    chosen = assignment(costs)
    by_place = {place: team for team, place in enumerate(chosen)}
    return [seated(view, teams[by_place[place]], *units) for place, units in enumerate(ranges)]


def _cost(view: SearchView, team: Team, first: int, stop: int) -> float:
    """What the team lacks. Its workers hold equal shares, so one of them speaks for all."""
    size = missing_at(view, team.workers[0], first, stop, team.tensor, team.shard, 0)
    return float(size * len(team.workers))


def seated(view: SearchView, team: Team, first: int, stop: int) -> Team:
    """The team with its workers on the seats where they hold most."""
    if _sits(view, team):
        return team
    costs = np.array(
        [
            [
                missing_at(view, worker, first, stop, team.tensor, team.shard, position)
                for position in range(len(team.workers))
            ]
            for worker in team.workers
        ]
    )
    chosen = assignment(costs)
    by_seat = {seat: worker for worker, seat in enumerate(chosen)}
    workers = tuple(team.workers[by_seat[seat]] for seat in range(len(team.workers)))
    return msgspec.structs.replace(team, workers=workers)


def _sits(view: SearchView, team: Team) -> bool:
    """Are all workers on the same place of an equal stage already?"""
    for position, worker in enumerate(team.workers):
        seats = view.plan.seats.get(worker, ())
        if [(s.tensor, s.shard, at) for s, at in seats] != [(team.tensor, team.shard, position)]:
            return False
    return True


def assignment(costs: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> list[int]:
    """For every row its column; the sum of costs is least. Staying is preferred among equals."""
    # Here: half a second of imports, and most commands that know the planner assign nothing.
    from scipy.optimize import linear_sum_assignment

    stay = 1.0 - np.eye(len(costs)) * 1e-9
    rows, columns = linear_sum_assignment(costs + stay)
    found = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    return [found[row] for row in range(len(costs))]
