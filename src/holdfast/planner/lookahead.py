"""Looking one failure ahead: a plan is also worth what is left of it after the next one.

The next failure hits every worker of a plan with the same chance. Workers in the same place of
equal teams are alike, so one failure per kind of team is played through; each of the best
candidates is scored by the mean of what it is worth now and what its best successor is worth.
"""

from collections.abc import Callable

import msgspec

from holdfast.plan.plan import Plan
from holdfast.planner.candidate import Candidate
from holdfast.planner.crossing_routes import whole_plan
from holdfast.planner.health import Health, Situation
from holdfast.planner.search_view import SearchView

NUM_AHEAD = 3
WEIGHT = 0.5
"""Of the time after the next failure."""

ThroughputAfter = Callable[[Plan, Health], float]
"""What the best answer to a situation is worth."""


def look_ahead(
    view: SearchView, situation: Situation, candidates: list[Candidate], answer: ThroughputAfter
) -> list[Candidate]:
    ranked = sorted(candidates, key=lambda c: (-c.score, c.strategy, c.reason))
    explained: list[Candidate] = []
    for number, candidate in enumerate(ranked):
        if number >= NUM_AHEAD or candidate.proposal is None:
            explained.append(candidate if number < NUM_AHEAD else _scaled(candidate))
            continue
        plan = whole_plan(view, candidate.proposal)
        after = _expected(plan, situation.health, answer)
        score = (1 - WEIGHT) * candidate.score + WEIGHT * after
        words = f"{candidate.reason}; after one more failure {after:.4g} on average"
        explained.append(msgspec.structs.replace(candidate, score=score, reason=words))
    return explained


def _scaled(candidate: Candidate) -> Candidate:
    """Not looked at: what it is worth after the next failure is taken as nothing."""
    return msgspec.structs.replace(candidate, score=(1 - WEIGHT) * candidate.score)


def _expected(plan: Plan, health: Health, answer: ThroughputAfter) -> float:
    kinds: dict[tuple[int, int, int, bool], list[str]] = {}
    for stage in plan.stages:
        slow = any(worker in health.factors for worker in stage.workers)
        kinds.setdefault((stage.first, stage.stop, stage.tensor, slow), []).extend(stage.workers)
    total = sum(len(workers) for workers in kinds.values())
    value = 0.0
    for workers in kinds.values():
        worse = msgspec.structs.replace(health, dead=(*health.dead, workers[0]))
        value += len(workers) / total * answer(plan, worse)
    return value
