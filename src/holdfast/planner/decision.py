"""The decision: all strategies, one cost model, one score, every candidate with its verdict.

    1. Is there a live copy of everything? If not, only a restart from a snapshot is left.
    2. Strategies propose, candidates are priced and ranked (`search.py`), in rounds: the first
       takes milliseconds and is good, every further one looks where the first took short cuts.
    3. The best candidate is written as a plan and checked as any plan is (memory, groups, dry run).
       One that is refused loses, with the reason, and the next is tried.

`decisions` is the search as it goes: a caller with a clock takes the last decision that came in
time. A decision says how many rounds it took, and `decide` with as many finds it again: equal
situations and rounds give equal decisions, in every process.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.copies import lost_slice
from holdfast.plan.plan import Plan
from holdfast.planner.candidate import Candidate
from holdfast.planner.health import Health, Situation
from holdfast.planner.lookahead import look_ahead
from holdfast.planner.search import Options, Search
from holdfast.planner.search_view import Proposal
from holdfast.planner.seat_assignment import assigned


class Decision(msgspec.Struct, frozen=True):
    """What to do. `plan` is None when nothing can be run."""

    plan: Plan | None
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    """All of them, best first."""
    lost: str = ""
    """The slice without a live copy, if state has to come from a snapshot."""
    reason: str = ""
    rounds: int = 1
    """Of search that led to it."""


DEFAULT = Options()
PlanObjection = Callable[[Plan], str]
"""Why a plan may not be chosen, for reasons that only the caller knows; empty: it may."""


def decide(
    situation: Situation, options: Options = DEFAULT, objection: PlanObjection | None = None
) -> Decision:
    """The decision after `options.rounds` rounds of search."""
    decider = _Decider(situation, options, objection)
    rankings = list(islice(decider.rankings(), options.rounds))
    return decider.choose(rankings[-1], len(rankings))


def decisions(
    situation: Situation, options: Options = DEFAULT, objection: PlanObjection | None = None
) -> Iterator[Decision]:
    """Decisions, each at least as good as the one before, until the search is at its end."""
    decider = _Decider(situation, options, objection)
    for number, ranked in enumerate(decider.rankings(), 1):
        yield decider.choose(ranked, number)


class _Decider:
    def __init__(
        self, situation: Situation, options: Options, objection: PlanObjection | None
    ) -> None:
        self.situation, self.options, self.objection = situation, options, objection
        self.plan, self.health = situation.plan, situation.health
        self.lost = lost_slice(self.plan, self.health.dead) if self.health.dead else ""
        self.search = Search(situation, options)

    def rankings(self) -> Iterator[list[Candidate]]:
        for ranked in self.search.rounds(bool(self.lost)):
            if self.options.look_ahead:
                ranked = sorted(self._ahead(ranked), key=self.search.rank)
            yield ranked

    def _ahead(self, candidates: list[Candidate]) -> list[Candidate]:
        return look_ahead(self.search.view, self.situation, candidates, self._after)

    def _after(self, plan: Plan, health: Health) -> float:
        """What the best answer to one more failure is worth; 0 if state is lost."""
        situation = msgspec.structs.replace(self.situation, plan=plan, health=health)
        options = msgspec.structs.replace(self.options, look_ahead=False, check=False, rounds=1)
        decision = decide(situation, options)
        return decision.chosen.score if decision.chosen is not None else 0.0

    def choose(self, ranked: list[Candidate], rounds: int) -> Decision:
        refused: dict[int, str] = {}
        for number, candidate in enumerate(ranked):
            if candidate.proposal is None:
                break
            ranked[number] = candidate = self._seated(candidate)
            plan, why = self._written(candidate.proposal or Proposal("", ""))
            if plan is not None:
                decision = _decision(plan, ranked, number, refused, self.lost)
                return msgspec.structs.replace(decision, rounds=rounds)
            refused[number] = why
        decision = _decision(None, ranked, -1, refused, self.lost)
        return msgspec.structs.replace(decision, rounds=rounds)

    def _seated(self, candidate: Candidate) -> Candidate:
        """Workers on the seats where they hold most, if that is no slower."""
        proposal = candidate.proposal
        if proposal is None or proposal.plan is not None or proposal.restores:
            return candidate
        if proposal.sketch is None or not candidate.change.num_bytes:
            return candidate
        sketch = assigned(self.search.view, proposal.sketch)
        moved = self.search.candidate(msgspec.structs.replace(proposal, sketch=sketch))
        if moved.step_time > candidate.step_time * (1 + 1e-9):
            return candidate
        if moved.change.num_bytes >= candidate.change.num_bytes:
            return candidate
        score = candidate.score if self.options.look_ahead else moved.score
        return msgspec.structs.replace(moved, score=score, reason=candidate.reason)

    def _written(self, proposal: Proposal) -> tuple[Plan | None, str]:
        """The plan, or why it cannot be chosen."""
        try:
            plan = self.search.plan_of(proposal)
        except HoldfastError as error:
            return None, str(error)
        why = self._objection(plan)
        return (None, why) if why else (plan, "")

    def _objection(self, plan: Plan) -> str:
        if self.objection is not None and (why := self.objection(plan)):
            return why
        if not self.options.check:
            return ""
        try:
            check_plan(plan, self.search.profile_of(plan))
        except HoldfastError as error:
            return str(error)
        return ""


def _decision(
    plan: Plan | None,
    ranked: Sequence[Candidate],
    winner: int,
    refused: dict[int, str],
    lost: str,
) -> Decision:
    chosen = ranked[winner] if winner >= 0 else None
    explained: list[Candidate] = []
    for number, candidate in enumerate(ranked):
        verdict = candidate.verdict
        if number == winner:
            verdict = "won: the highest score of all that pass the dry run"
        elif number in refused:
            verdict = f"refused: {refused[number]}"
        elif not verdict and chosen is not None:
            verdict = _lost_by(candidate, chosen)
        explained.append(msgspec.structs.replace(candidate, verdict=verdict))
    reason = explained[winner].reason if winner >= 0 else _nothing(ranked)
    return Decision(
        plan, explained[winner] if winner >= 0 else None, tuple(explained), lost, reason
    )


def _lost_by(candidate: Candidate, chosen: Candidate) -> str:
    if candidate.copies < chosen.copies and candidate.score > chosen.score:
        return f"lost: keeps {candidate.copies} live copies of some slices, not {chosen.copies}"
    behind = 100 * (1 - candidate.score / chosen.score)
    if behind < 0.005:
        return "lost: as good as the winner, which moves less or comes first"
    slower = 100 * (candidate.step_time / chosen.step_time - 1)
    longer = candidate.change.time - chosen.change.time
    return f"lost by {behind:.2f} %: step {slower:+.2f} %, change {longer:+.2f}"


def _nothing(ranked: Sequence[Candidate]) -> str:
    reasons = dict.fromkeys(c.verdict for c in ranked if c.verdict)
    return "nothing can be run: " + "; ".join(list(reasons)[:3])
