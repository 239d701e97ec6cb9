"""The search: strategies propose, one model prices, one score ranks; in rounds that cost more.

Sketches are priced on the timeline, equal pipelines once. Proposals with crossing routes are
scheduled only if their lower bound can still win. The best sketches are improved by single units.

Rounds: the first takes every short cut that keeps a decision quick (20 ms at 32 devices). The next
take none: all lengths and line-ups, all schedules; tensor groups of powers of two only, which
leaves other workers over; more candidates improved; tensor groups cut anew. What was found stays,
so a round never makes the answer worse. Nothing here looks at a clock: the caller stops when its
time is up.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.copies import held_twice, num_copies, without_copies
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.without_workers import without_workers
from holdfast.planner.candidate import Candidate
from holdfast.planner.crossing_routes import mixed_time, whole_plan
from holdfast.planner.health import Health, Situation
from holdfast.planner.local_search import passes_of, polished
from holdfast.planner.pipelines import Sketch
from holdfast.planner.score import (
    ChangeCosts,
    SwitchCost,
    estimate_change,
    estimate_restart,
    score_of,
)
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.step_cost import CostModel
from holdfast.planner.strategies.arrange import arrange, merge
from holdfast.planner.strategies.cut_alike import cut_alike
from holdfast.planner.strategies.keep import (
    carry_on,
    move_micro_batches,
    move_units,
    trade_places,
)
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
    trade_places,
    repair_pipelines,
    arrange,
    merge,
    regular,
    reroute,
    migrate,
)

LAYOUTS = (arrange, merge, regular)
"""They try many lengths, of which some never fit: that alone does not mean tight memory."""

POLISHED = "; bounds improved by single units"
WORTH_POLISHING = 0.98
"""Candidates nearly as good as the best get their shares and bounds improved by single steps."""


class SearchRound(msgspec.Struct, frozen=True):
    strategies: tuple[StrategyFunction, ...]
    """Without a live copy of everything only a restart is left, whatever stands here."""
    thorough: bool = False
    """Without short cuts, and under every schedule."""
    powers: bool = False
    """Only tensor groups of 1, 2, 4, 8 workers."""
    recut: bool = False
    """Tensor groups are cut anew, also those that are whole."""
    max_polished: int = 12
    """So many of the best candidates are improved by single steps ..."""
    max_passes: int = 800
    """... and so many micro-batches times stages squared, but one candidate in any case."""


ROUNDS = (
    SearchRound(LIVE),
    SearchRound((*LAYOUTS, cut_alike, repair_pipelines, reroute, migrate), thorough=True),
    SearchRound((arrange, repair_pipelines), thorough=True, powers=True),
    SearchRound((), max_polished=48, max_passes=20_000),
    SearchRound((arrange,), thorough=True, recut=True),
    SearchRound((), max_polished=48, max_passes=20_000),
)
ALL_ROUNDS = len(ROUNDS)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    split_backward: bool = True
    """May the schedule change to its variant with a split backward pass (1f1b to zero-bubble)?"""
    copies: bool = False
    """Also consider redundant copies."""
    keeps_copies: bool = False
    """The plan holds every stage twice, on workers that compute another one (`with_redundancy`),
    and so does every plan that is chosen. Sketches are priced without copies.
    """
    rounds: int = 1
    """How many rounds of the search decide; the first is quick, ALL_ROUNDS is the whole search."""
    recut: bool = True
    """May tensor groups that are whole be cut anew?"""
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


def schedules_for(plan: Plan, options: Options) -> tuple[str, ...]:
    """The schedules that sketches may have; the one that waits least comes last."""
    rule = priced_rule(rule_of(plan.schedule.kind).planned_as)
    if options.split_backward and rule.split_variant:
        return (rule.name, rule.split_variant)
    return (rule.name,)


class Search:
    def __init__(self, situation: Situation, options: Options) -> None:
        self.situation, self.options = situation, options
        self.plan, self.health = situation.plan, situation.health
        if options.keeps_copies:
            self.plan = without_copies(self.plan)
        self.left: Plan | None = None
        """What the loss of workers leaves of the plan, copies included."""
        self.cost = CostModel(self.plan, situation.profile)
        self.view = SearchView(self.plan, self.health, self.cost, schedules_for(self.plan, options))
        self.view.improve = options.improve
        num_devices = len(self.plan.workers) + len(self.health.spares)
        self.rate = situation.rates.change(num_devices)
        self.view.wanted = min(options.min_copies, num_copies(self.plan))
        self.wanted = min(options.min_copies, num_copies(situation.plan))
        self.known: dict[object, Proposal] = {}
        self.polished: set[Sketch] = set()

    def rounds(self, lost: bool) -> Iterator[list[Candidate]]:
        """All candidates so far, best first, after every round.

        `lost`: a slice has no live copy.
        """
        candidates: list[Candidate] = []
        for number, part in enumerate(ROUNDS):
            strategies = part.strategies
            if part.recut and not self.options.recut:
                strategies = ()
            if lost and strategies:
                strategies = (restart,)
            if number == 0 and self.options.copies and not lost:
                strategies = (*strategies, add_copies)
            if number == 0 and self.options.keeps_copies and not lost:
                strategies = (*strategies, self._reroute_to_copies)
            candidates += self._price(self._proposed(strategies, part))
            while self._keep_too_few(candidates):
                self.view.wanted -= 1
                candidates += self._price(self._proposed(strategies, part))
            candidates += self._polish(sorted(candidates, key=self.rank), part)
            yield sorted(candidates, key=self.rank)

    def _keep_too_few(self, candidates: Sequence[Candidate]) -> bool:
        """Strategies leave out what keeps fewer copies than are wanted, before it is known that
        nothing else has room for the model.
        """
        most = max((c.copies for c in candidates if c.proposal is not None), default=0)
        return self.view.wanted > 1 and most < self.view.wanted

    def _reroute_to_copies(self, view: SearchView) -> Iterator[Proposal]:
        whole = self.situation.plan
        if view.health.gone.isdisjoint(whole.workers):
            return
        reason = "routes pass the copies where a stage is lost; no state moves"
        try:
            self.left, _ = without_workers(whole, view.health.gone)
        except HoldfastError as error:
            yield Proposal("reroute", reason, refusal=str(error))
        else:
            yield Proposal("reroute", reason, plan=self.left)

    def _proposed(
        self, strategies: Sequence[StrategyFunction], part: SearchRound
    ) -> list[Proposal]:
        """What no earlier round proposed."""
        view, schedules = self.view, self.view.schedules
        view.thorough, view.powers, view.recut = part.thorough, part.powers, part.recut
        before = len(self.known)
        if part.thorough:
            for strategy in strategies:
                self._add(strategy(view))
        else:
            self._quick(strategies)
        view.thorough = view.powers = view.recut = False
        view.schedules = schedules
        return list(self.known.values())[before:]

    def _quick(self, strategies: Sequence[StrategyFunction]) -> None:
        """With the schedule that waits least. Another one only pays where memory is tight: it may
        keep fewer activations.
        """
        *others, best = self.view.schedules
        self.view.schedules = (best,)
        tight: list[StrategyFunction] = []
        for strategy in strategies:
            self.cost.was_tight = False
            found = list(strategy(self.view))
            self._add(found)
            possible = [
                p for p in found if p.sketch is not None and not self.cost.refusal(p.sketch)
            ]
            if self.cost.was_tight and (strategy not in LAYOUTS or not possible):
                tight.append(strategy)
        self.view.schedules = tuple(others)
        for strategy in tight if others else ():
            self._add(strategy(self.view))

    def _add(self, found: Iterable[Proposal]) -> None:
        """Equal sketches count once: the first strategy to propose one keeps it."""
        for proposal in found:
            self.known.setdefault(_key(proposal), proposal)

    def _price(self, proposals: Sequence[Proposal]) -> list[Candidate]:
        """Sketches first: they are cheap, and give the bar for the others."""
        plain = [p for p in proposals if p.plan is None]
        mixed = [p for p in proposals if p.plan is not None]
        candidates = [self.candidate(proposal) for proposal in plain]
        best = min((c.step_time for c in candidates), default=inf)
        for proposal in sorted(mixed, key=lambda p: p.bound):
            if proposal.bound >= best:
                words = f"no step of it is shorter than {proposal.bound:.4g}"
                candidates.append(self._refused(proposal, words))
            else:
                candidates.append(self.candidate(proposal))
                best = min(best, candidates[-1].step_time)
        return candidates

    def candidate(self, proposal: Proposal) -> Candidate:
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

    def _polish(self, ranked: list[Candidate], part: SearchRound) -> list[Candidate]:
        """Single units moved over the bounds of the best sketches, as long as the step shortens."""
        better: list[Candidate] = []
        passes = 0
        for candidate in ranked[: part.max_polished]:
            proposal = candidate.proposal
            if candidate.score < ranked[0].score * WORTH_POLISHING:
                continue
            if proposal is None or proposal.plan is not None or proposal.strategy == "carry on":
                continue
            if proposal.sketch is None or (better and passes > part.max_passes):
                continue
            if proposal.sketch in self.polished:
                continue
            self.polished.add(proposal.sketch)
            passes += passes_of(proposal.sketch)
            sketch = polished(self.view, proposal.sketch)
            if sketch is not None:
                words = proposal.reason.removesuffix(POLISHED) + POLISHED
                changed = msgspec.structs.replace(proposal, sketch=sketch, reason=words)
                better.append(self.candidate(changed))
        return better

    def rank(self, candidate: Candidate) -> tuple[int, float, float, int]:
        """Equals stay in the order in which they were proposed: simpler strategies come first."""
        missing = max(0, self.wanted - candidate.copies)
        change = candidate.change
        return (missing, -candidate.score, change.time, change.num_bytes)

    def _copies(self, proposal: Proposal) -> int:
        """At least, where crossing routes get copies of their stages."""
        sketch, twice = proposal.sketch, self.options.keeps_copies
        used = zip(sketch.pipes, sketch.counts, strict=True) if sketch is not None else ()
        beside = sum(1 + (twice and pipe.depth > 1) for pipe, count in used if count)
        if proposal.plan is None:
            return beside
        is_same = proposal.plan is self.view.plan
        return beside + num_copies(self.situation.plan if is_same else proposal.plan)

    def plan_of(self, proposal: Proposal) -> Plan:
        """Written out, with copies where they are kept; an error: that plan cannot have them."""
        plan = whole_plan(self.view, proposal)
        if not self.options.keeps_copies or plan is self.left:
            return plan
        return self.situation.plan if plan is self.view.plan else held_twice(plan)

    def profile_of(self, plan: Plan) -> Profile:
        return msgspec.structs.replace(self.cost.profile, slow=slow_of(plan, self.health))


def slow_of(plan: Plan, health: Health) -> dict[str, float]:
    return {worker: factor for worker, factor in health.slow if worker in plan.seats}


def _key(proposal: Proposal) -> object:
    """Of equal proposals the same: a sketch decides, a plan is known by its reason and bound."""
    if proposal.plan is None and proposal.sketch is not None:
        return proposal.sketch
    schedule = proposal.plan.schedule if proposal.plan is not None else None
    return (proposal.strategy, proposal.reason, proposal.refusal, proposal.bound, schedule)
