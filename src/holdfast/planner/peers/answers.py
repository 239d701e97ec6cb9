"""What a system would do in a situation, priced with the planner's cost model.

A system proposes on the health that it sees: one that does not know slow workers plans as if there
were none. What it proposes is priced on the true health.
"""

from collections.abc import Iterator

import msgspec

from holdfast.plan.copies import num_copies
from holdfast.planner.crossing_routes import mixed_time
from holdfast.planner.health import Health
from holdfast.planner.peers.system import RESTART, PeerSystem
from holdfast.planner.pipelines import Sketch
from holdfast.planner.score import (
    ChangeCosts,
    SwitchCost,
    estimate_change,
    estimate_restart,
    score_of,
)
from holdfast.planner.search_view import Proposal, SearchView

COSTS = ChangeCosts()


class PeerAnswer(msgspec.Struct, frozen=True):
    strategy: str
    reason: str
    step_time: float
    change: SwitchCost
    copies: int
    """Of the slice that has fewest, at least."""


def peer_answers(system: PeerSystem, view: SearchView) -> Iterator[PeerAnswer]:
    """Everything its rule proposes that can be run."""
    seen = view.health if system.sees_slow else Health(view.health.dead, (), view.health.spares)
    own = SearchView(view.plan, seen, view.cost, view.schedules)
    own.thorough = True
    for proposal in system.propose(own):
        found = _priced(system, view, proposal)
        if found is not None:
            yield found


def best_answer(system: PeerSystem, view: SearchView, rate: float) -> PeerAnswer | None:
    """The best by the planner's score at a rate of changes; None where nothing can be run."""

    def score(found: PeerAnswer) -> float:
        return score_of(view.total, found.step_time, rate, found.change.time)

    return max(peer_answers(system, view), key=score, default=None)


def _priced(system: PeerSystem, view: SearchView, proposal: Proposal) -> PeerAnswer | None:
    sketch = _as_it_is(view, proposal.sketch)
    if proposal.refusal or (sketch is not None and view.cost.refusal(sketch)):
        return None
    if proposal.plan is not None:
        time = mixed_time(view, sketch, proposal.plan)
    elif sketch is not None:
        time = max(view.cost.step_time(sketch), proposal.bound)
    else:
        return None
    if system.reaction == RESTART and sketch is not None:
        change = estimate_restart(view, sketch, COSTS)
    else:
        change = estimate_change(view, sketch, proposal.plan, COSTS)
    copies = sum(map(bool, sketch.counts)) if sketch is not None else 0
    copies += num_copies(proposal.plan) if proposal.plan is not None else 0
    return PeerAnswer(proposal.strategy, proposal.reason, time, change, copies)


def _as_it_is(view: SearchView, sketch: Sketch | None) -> Sketch | None:
    """The sketch with the true speeds of its teams."""
    if sketch is None or not view.health.slow:
        return sketch
    pipes = []
    for pipe in sketch.pipes:
        teams = [view.team(team.workers, team.tensor, team.shard) for team in pipe.teams]
        pipes.append(msgspec.structs.replace(pipe, teams=tuple(teams)))
    return msgspec.structs.replace(sketch, pipes=tuple(pipes))
