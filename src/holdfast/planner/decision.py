"""The decision: all strategies, one cost model, one score, every candidate with its verdict.

    1. Is there a live copy of everything? If not, only a restart from a snapshot is left.
    2. Every strategy proposes. Sketches are costed on the timeline, equal pipelines once.
       Proposals with crossing routes are scheduled only if their lower bound can still win.
    3. Candidates are ranked by score: useful throughput until the next change.
    4. The best one is written as a plan and checked as any plan is (memory, groups, dry run). One
       that is refused loses, with the reason, and the next is tried.

Deterministic: equal situations give equal decisions, in every process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.copies import lost_slice, num_copies
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.planner.candidate import Candidate
from holdfast.planner.crossing_routes import mixed_time, whole_plan
from holdfast.planner.health import Health, Situation
from holdfast.planner.local_search import passes_of, polished
from holdfast.planner.lookahead import look_ahead
from holdfast.planner.score import (
    ChangeCosts,
    SwitchCost,
    estimate_change,
    estimate_restart,
    score_of,
)
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.seat_assignment import assigned
from holdfast.planner.step_cost import CostModel
from holdfast.planner.strategies.arrange import arrange, merge
from holdfast.planner.strategies.keep import carry_on, move_micro_batches, move_units
from holdfast.planner.strategies.redundant import add_copies
from holdfast.planner.strategies.regular import regular
from holdfast.planner.strategies.repair import repair_pipelines
from holdfast.planner.strategies.reroute import migrate, reroute
from holdfast.planner.strategies.restart import restart
from holdfast.schedule.registry import priced_rule, rule_of

StrategyFunction = Callable[[SearchView], Iterator[Proposal]]

LIVE: tuple[StrategyFunction, ...] = (
    carry_on,
    move_micro_batches,
    move_units,
    repair_pipelines,
    arrange,
    merge,
    regular,
    reroute,
    migrate,
)

LAYOUTS = (arrange, merge, regular)
"""They try many lengths, of which some never fit: that alone does not mean tight memory."""

WORTH_POLISHING = 0.98
"""Candidates nearly as good as the best get their shares and bounds improved by single steps."""
MAX_POLISHED, MAX_PASSES = 12, 800
"""As many as that, and so many micro-batches times stages squared, but one in any case."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    split_backward: bool = True
    """May the schedule change to its variant with a split backward pass (1f1b to zero-bubble)?"""
    copies: bool = False
    """Also consider redundant copies."""
    thorough: bool = False
    """Take none of the short cuts that keep a decision quick."""
    improve: bool = False
    """Look for a better layout also where nothing is wrong."""
    min_copies: int = 2
    """Keep at least this many live copies of everything, as far as the plan has them now and any
    candidate keeps them: with one copy, the next failure is a restart.
    """
    look_ahead: bool = False
    """Score the best candidates by what is left of them after one more failure, too."""
    check: bool = True
    """Dry-run the winner."""
    costs: ChangeCosts = ChangeCosts()


class Decision(msgspec.Struct, frozen=True):
    """What to do. `plan` is None when nothing can be run."""

    plan: Plan | None
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    """All of them, best first."""
    lost: str = ""
    """The slice without a live copy, if state has to come from a snapshot."""
    reason: str = ""


DEFAULT = Options()


def decide(situation: Situation, options: Options = DEFAULT) -> Decision:
    return _Search(situation, options).decide()


def schedules_for(plan: Plan, options: Options) -> tuple[str, ...]:
    """The schedules that sketches may have; the one that waits least comes last."""
    rule = priced_rule(rule_of(plan.schedule.kind).planned_as)
    if options.split_backward and rule.split_variant:
        return (rule.name, rule.split_variant)
    return (rule.name,)


class _Search:
    def __init__(self, situation: Situation, options: Options) -> None:
        self.situation, self.options = situation, options
        self.plan, self.health = situation.plan, situation.health
        self.cost = CostModel(self.plan, situation.profile)
        self.view = SearchView(self.plan, self.health, self.cost, schedules_for(self.plan, options))
        self.view.improve = options.improve
        self.view.thorough = options.thorough
        num_devices = len(self.plan.workers) + len(self.health.spares)
        self.rate = situation.rates.change(num_devices)
        self.view.wanted = min(options.min_copies, num_copies(self.plan))

    def decide(self) -> Decision:
        lost = lost_slice(self.plan, self.health.dead) if self.health.dead else ""
        strategies = (restart,) if lost else LIVE
        if self.options.copies and not lost:
            strategies = (*strategies, add_copies)
        candidates = self._all(strategies)
        if self.options.look_ahead:
            candidates = self._ahead(candidates)
        ranked = self._polish(sorted(candidates, key=self._rank))
        return self._choose(ranked, lost)

    def _all(self, strategies: Sequence[StrategyFunction]) -> list[Candidate]:
        """With the schedule that waits least. Another one only pays where memory is tight: it may
        keep fewer activations.
        """
        *others, best = self.view.schedules
        self.view.schedules = (best,)
        tight: list[StrategyFunction] = []
        proposals: dict[object, Proposal] = {}
        for strategy in strategies:
            self.cost.was_tight = False
            found = list(strategy(self.view))
            _add(proposals, found)
            possible = [
                p for p in found if p.sketch is not None and not self.cost.refusal(p.sketch)
            ]
            if self.cost.was_tight and (strategy not in LAYOUTS or not possible):
                tight.append(strategy)
        self.view.schedules = tuple(others)
        for strategy in tight if others else ():
            _add(proposals, strategy(self.view))
        return self._cost(list(proposals.values()))

    def _cost(self, proposals: Sequence[Proposal]) -> list[Candidate]:
        """Sketches first: they are cheap, and give the bar for the others."""
        plain = [p for p in proposals if p.plan is None]
        mixed = [p for p in proposals if p.plan is not None]
        candidates = [self._candidate(proposal) for proposal in plain]
        best = min((c.step_time for c in candidates), default=inf)
        for proposal in sorted(mixed, key=lambda p: p.bound):
            if proposal.bound >= best:
                words = f"no step of it is shorter than {proposal.bound:.4g}"
                candidates.append(self._refused(proposal, words))
            else:
                candidates.append(self._candidate(proposal))
                best = min(best, candidates[-1].step_time)
        return candidates

    def _candidate(self, proposal: Proposal) -> Candidate:
        refusal = proposal.refusal
        if not refusal and proposal.sketch is not None:
            refusal = self.cost.refusal(proposal.sketch)
        if refusal:
            return self._refused(proposal, refusal)
        try:
            time = (
                mixed_time(self.view, proposal.sketch, proposal.plan)
                if proposal.plan is not None
                else self.cost.step_time(proposal.sketch)  # type: ignore[arg-type]
            )
        except HoldfastError as error:
            return self._refused(proposal, str(error))
        change = self._change(proposal)
        score = score_of(self.view.total, time, self.rate, change.time)
        words = proposal.reason + self._schedule_words(proposal)
        copies = self._copies(proposal)
        return Candidate(proposal.strategy, words, time, change, score, copies, proposal=proposal)

    def _schedule_words(self, proposal: Proposal) -> str:
        old = self.plan.schedule.kind
        part = proposal.plan.schedule if proposal.plan is not None else proposal.sketch
        new = part.kind if part is not None else old
        return f"; schedule {new} instead of {old}" if new != old else ""

    def _refused(self, proposal: Proposal, why: str) -> Candidate:
        return Candidate(proposal.strategy, proposal.reason, verdict=f"refused: {why}")

    def _change(self, proposal: Proposal) -> SwitchCost:
        if proposal.restores and proposal.sketch is not None:
            return estimate_restart(self.view, proposal.sketch, self.options.costs)
        return estimate_change(self.view, proposal.sketch, proposal.plan, self.options.costs)

    def _polish(self, ranked: list[Candidate]) -> list[Candidate]:
        """Move single units over the bounds of the best sketches, as long as the step shortens."""
        better: list[Candidate] = []
        passes = 0
        for candidate in ranked[:MAX_POLISHED]:
            proposal = candidate.proposal
            if candidate.score < ranked[0].score * WORTH_POLISHING:
                continue
            if proposal is None or proposal.plan is not None or proposal.strategy == "carry on":
                continue
            if proposal.sketch is None or (better and passes > MAX_PASSES):
                continue
            passes += passes_of(proposal.sketch)
            sketch = polished(self.view, proposal.sketch)
            if sketch is not None:
                words = f"{proposal.reason}; bounds improved by single units"
                changed = msgspec.structs.replace(proposal, sketch=sketch, reason=words)
                better.append(self._candidate(changed))
        return sorted([*ranked, *better], key=self._rank)

    def _rank(self, candidate: Candidate) -> tuple[int, float, float, int]:
        """Equals stay in the order in which they were proposed: simpler strategies come first."""
        missing = max(0, self.view.wanted - candidate.copies)
        change = candidate.change
        return (missing, -candidate.score, change.time, change.num_bytes)

    def _copies(self, proposal: Proposal) -> int:
        beside = sum(map(bool, proposal.sketch.counts)) if proposal.sketch is not None else 0
        return beside + (num_copies(proposal.plan) if proposal.plan is not None else 0)

    def _ahead(self, candidates: list[Candidate]) -> list[Candidate]:
        return look_ahead(self.view, self.situation, candidates, self._after)

    def _after(self, plan: Plan, health: Health) -> float:
        """What the best answer to one more failure is worth; 0 if state is lost."""
        situation = msgspec.structs.replace(self.situation, plan=plan, health=health)
        options = msgspec.structs.replace(self.options, look_ahead=False, check=False)
        decision = decide(situation, options)
        return decision.chosen.score if decision.chosen is not None else 0.0

    def _choose(self, ranked: list[Candidate], lost: str) -> Decision:
        refused: dict[int, str] = {}
        for number, candidate in enumerate(ranked):
            if candidate.proposal is None:
                break
            ranked[number] = candidate = self._seated(candidate)
            plan = whole_plan(self.view, candidate.proposal or Proposal("", ""))
            why = self._objection(plan)
            if not why:
                return _decision(plan, ranked, number, refused, lost)
            refused[number] = why
        return _decision(None, ranked, -1, refused, lost)

    def _seated(self, candidate: Candidate) -> Candidate:
        """Workers on the seats where they hold most, if that is no slower."""
        proposal = candidate.proposal
        if proposal is None or proposal.plan is not None or proposal.restores:
            return candidate
        if proposal.sketch is None or not candidate.change.num_bytes:
            return candidate
        sketch = assigned(self.view, proposal.sketch)
        moved = self._candidate(msgspec.structs.replace(proposal, sketch=sketch))
        if moved.step_time > candidate.step_time * (1 + 1e-9):
            return candidate
        if moved.change.num_bytes >= candidate.change.num_bytes:
            return candidate
        score = candidate.score if self.options.look_ahead else moved.score
        return msgspec.structs.replace(moved, score=score, reason=candidate.reason)

    def _objection(self, plan: Plan) -> str:
        if not self.options.check:
            return ""
        try:
            check_plan(plan, self._profile_of(plan))
        except HoldfastError as error:
            return str(error)
        return ""

    def _profile_of(self, plan: Plan) -> Profile:
        return msgspec.structs.replace(self.cost.profile, slow=slow_of(plan, self.health))


def _add(proposals: dict[object, Proposal], found: Iterable[Proposal]) -> None:
    """Equal sketches count once: the first strategy to propose one keeps it."""
    for proposal in found:
        alone = proposal.plan is None and proposal.sketch is not None
        proposals.setdefault(proposal.sketch if alone else len(proposals), proposal)


def slow_of(plan: Plan, health: Health) -> dict[str, float]:
    return {worker: factor for worker, factor in health.slow if worker in plan.seats}


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
