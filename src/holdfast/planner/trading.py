"""Workers trade places, so that slow links have little to carry.

Which links a layout uses follows from who sits where: neighbours of a pipeline send each other
messages, rank by rank, and stages that hold the same units form rings. So a slow link is avoided by
another seat for one of its ends, with all stages, degrees and shares as they are:

    within a team       two ranks of a tensor group change seats; only their slices move
    between pipelines   two teams at the same depth change pipelines; often nothing moves
    within a pipeline   two stages change places

Trades are made one after the other, each time the one that makes the step shortest, until it is as
short as if no link were slow, or no trade helps. Only equal teams trade, so that units and speeds
stay where they are.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from holdfast.plan.workers import node_of
from holdfast.planner.pipelines import Pipe, Sketch, Team
from holdfast.planner.search_view import SearchView

MAX_TRADES = 4
"""One after the other."""
MAX_TRIED, MAX_PRICED = 96, 4096
"""Ways to trade that are looked at for each of them; with many stages fewer, as each of these ways
is priced with all stages.
"""
NEARLY = 1.001
"""Times as long as without slow links: that is good enough."""

_Place = tuple[int, int]
"""Pipeline, stage."""


def traded(view: SearchView, sketch: Sketch) -> Sketch:
    """The same layout with workers in places where links are fast; itself if there is none."""
    for _ in range(MAX_TRADES if view.cost.profile.links else 0):
        better = None if _is_free(view, sketch) else _best_trade(view, sketch)
        if better is None or view.cost.refusal(better):
            break
        sketch = better
    return sketch


def _is_free(view: SearchView, sketch: Sketch) -> bool:
    """Do slow links make no difference to its layout? Its shares of micro-batches may be made for
    them, and are dealt out as if there were none.
    """
    free = view.without_links
    least = free.cost.step_time(free.shared(sketch.pipes, sketch.kind))
    return view.cost.step_time(sketch) <= NEARLY * least


def _best_trade(view: SearchView, sketch: Sketch) -> Sketch | None:
    """None: no trade helps."""
    num_stages = sum(pipe.depth for pipe in sketch.pipes)
    most = min(MAX_TRIED, max(8, MAX_PRICED // num_stages))
    time, best = view.cost.step_time(sketch) * (1 - 1e-9), None
    for pipes in islice(_ways(view, sketch.pipes), most):
        found = view.shared(pipes, sketch.kind)
        if view.cost.step_time(found) < time:
            time, best = view.cost.step_time(found), found
            if _is_free(view, found):
                break
    return best


def _ways(view: SearchView, pipes: Sequence[Pipe]) -> Iterator[list[Pipe]]:
    """Every trade of a worker at an end of a slow link; those that move least first."""
    hit = [place for place in _places(pipes) if _ends(view, _at(pipes, place))]
    for place in hit:
        yield from _between_pipelines(pipes, place)
    for place in hit:
        yield from _within_team(view, pipes, place)
    for place in hit:
        yield from _within_pipeline(pipes, place)


def _places(pipes: Sequence[Pipe]) -> list[_Place]:
    return [(n, k) for n, pipe in enumerate(pipes) for k in range(pipe.depth)]


def _at(pipes: Sequence[Pipe], place: _Place) -> Team:
    return pipes[place[0]].teams[place[1]]


def _ends(view: SearchView, team: Team) -> list[int]:
    """Places in a team whose workers are at an end of a slow link."""
    names = {end for link in view.cost.profile.links for end in link.split(">")}
    return [at for at, w in enumerate(team.workers) if w in names or node_of(w) in names]


def _between_pipelines(pipes: Sequence[Pipe], place: _Place) -> Iterator[list[Pipe]]:
    depth = place[1]
    for other in range(len(pipes)):
        if other != place[0] and depth < pipes[other].depth:
            yield from _exchanged(pipes, place, (other, depth))


def _within_pipeline(pipes: Sequence[Pipe], place: _Place) -> Iterator[list[Pipe]]:
    for depth in range(pipes[place[0]].depth):
        if depth != place[1]:
            yield from _exchanged(pipes, place, (place[0], depth))


def _exchanged(pipes: Sequence[Pipe], one: _Place, other: _Place) -> Iterator[list[Pipe]]:
    first, second = _at(pipes, one), _at(pipes, other)
    if (first.tensor, first.shard, first.slow) == (second.tensor, second.shard, second.slow):
        yield _seated(_seated(pipes, one, second), other, first)


def _within_team(view: SearchView, pipes: Sequence[Pipe], place: _Place) -> Iterator[list[Pipe]]:
    team = _at(pipes, place)
    for at in _ends(view, team):
        for other in range(len(team.workers)):
            if other != at:
                workers = list(team.workers)
                workers[at], workers[other] = workers[other], workers[at]
                changed = msgspec.structs.replace(team, workers=tuple(workers))
                yield _seated(pipes, place, changed)


def _seated(pipes: Sequence[Pipe], place: _Place, team: Team) -> list[Pipe]:
    found, (number, depth) = list(pipes), place
    teams = list(found[number].teams)
    teams[depth] = team
    found[number] = msgspec.structs.replace(found[number], teams=tuple(teams))
    return found
