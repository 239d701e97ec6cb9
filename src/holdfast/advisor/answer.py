"""From a question to an answer: the search of `planner/`, with costs in seconds of this job.

The search starts from the job's own plan and the health of its workers, so that the same health
gives the same answer, whatever happened before. Only where that plan has lost its last copy of
something (the plan in force still has one) does it start from the plan in force. Plans that the job
cannot enter are refused in the search itself. A job whose own plan holds every stage twice is
offered only plans that do so, too.
"""

from collections.abc import Iterator

import msgspec

from holdfast.control.plan_question import PlanAnswer, PlanOption, PlanQuestion
from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.copies import lost_slice, num_copies, without_copies
from holdfast.plan.entering import why_not_entered
from holdfast.plan.lanes import layout_of
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile, unit_cost
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.timeline import evaluate
from holdfast.planner.candidate import Candidate
from holdfast.planner.decision import Decision, decisions
from holdfast.planner.health import FailureRates, Health, Situation, seen_from
from holdfast.planner.score import ChangeCosts
from holdfast.planner.search import Options
from holdfast.schedule.orders import compute_orders

NUM_RUNNER_UPS = 5
NUM_FITS = 6
"""Halvings until the share of traffic is close enough."""
WORTH_ORDERING = 0.99
"""Of the step time."""
ASSUMED = Profile().source


def answers(question: PlanQuestion) -> Iterator[PlanAnswer]:
    """Each at least as good as the one before, until the search is at its end."""
    asked = _Asked(question)
    for decision in decisions(asked.situation, asked.options, asked.objection):
        yield asked.answer(decision)


def answer_after(question: PlanQuestion, rounds: int) -> PlanAnswer:
    """The answer after so many rounds of search."""
    found = PlanAnswer(number=question.number, error="no search was asked for")
    for number, answer in enumerate(answers(question), 1):
        found = answer
        if number >= rounds:
            break
    return found


class _Asked:
    """A question with its plans read and its costs scaled."""

    def __init__(self, question: PlanQuestion) -> None:
        self.question = question
        self.now, home = parse_plan(question.now), parse_plan(question.home)
        self.slow = dict(question.health.slow)
        profile = self._fitted(question.profile, parse_plan(question.paced))
        self.now_s = _step_time(self.now, profile, self.slow)
        base, health = home, question.health
        if health.dead and lost_slice(home, health.dead):
            base, health = self.now, self._from_now()
        idle = any(name not in self.now.seats for name in question.available)
        rates = FailureRates(
            prior_failures=0.0,
            prior_device_time=1.0,
            prior_repairs=1.0,
            prior_wall_time=max(question.lasting_s, 1e-3),
        )
        self.situation = Situation(base, health, profile, rates)
        costs = ChangeCosts(rendezvous=question.prepare_s, source="measured in this job")
        # Groups that are whole stay: what other tensor degrees cost was not measured here.
        self.options = Options(
            split_backward=False,
            recut=False,
            improve=idle or bool(profile.links),
            keeps_copies=without_copies(home) is not home,
            costs=costs,
        )

    def _fitted(self, profile: Profile, paced: Plan) -> Profile:
        """So that the model says of the plan that was measured what was measured. Assumed costs
        are only right in relation to each other. Where they are measured, what a step takes beyond
        them is the same in every step; if it takes less, messages and reductions waited for
        processors when they were timed, and cost less than they seemed to.
        """
        profile = msgspec.structs.replace(profile, slow={})  # health says it
        pace_s, modelled_s = self.question.pace_s, _step_time(paced, profile, self.slow)
        if profile.source != ASSUMED and pace_s < modelled_s:
            profile = self._with_less_traffic(profile, paced)
            modelled_s = _step_time(paced, profile, self.slow)
        if profile.source != ASSUMED and pace_s >= modelled_s:
            return msgspec.structs.replace(profile, agree=profile.agree + pace_s - modelled_s)
        return scaled(profile, self.now, pace_s / modelled_s if modelled_s > 0 else 1.0)

    def _with_less_traffic(self, profile: Profile, paced: Plan) -> Profile:
        """The most traffic with which a step is not longer than it was; none if none will do."""
        low, high = 0.0, 1.0
        for _ in range(NUM_FITS):
            middle = (low + high) / 2
            found = with_traffic(profile, middle)
            if _step_time(paced, found, self.slow) > self.question.pace_s:
                high = middle
            else:
                low = middle
        return with_traffic(profile, low)

    def _from_now(self) -> Health:
        workers = tuple(dict.fromkeys((*self.now.workers, *self.question.available)))
        return seen_from(self.now, workers, (), self.slow)

    def objection(self, plan: Plan) -> str:
        return why_not_entered(self.now, plan, self.question.available)

    def _ordered(self, plan: Plan) -> tuple[Plan, float]:
        """With the order made for those who are slow, where that is worth being another plan, and
        where it passes the check that the plan without it has passed.
        """
        profile, ordered = self.situation.profile, ordered_for(plan, self.slow)
        plain_s = _step_time(plan, profile, self.slow)
        ordered_s = _step_time(ordered, profile, self.slow)
        if ordered_s >= WORTH_ORDERING * plain_s or not _is_sound(ordered):
            return plan, plain_s
        return ordered, ordered_s

    def answer(self, decision: Decision) -> PlanAnswer:
        number, chosen = self.question.number, decision.chosen
        if decision.plan is None or chosen is None:
            return PlanAnswer(number=number, error=decision.reason, rounds=decision.rounds)
        others = [c for c in decision.candidates if c is not chosen and c.proposal is not None]
        plan, step_s = self._ordered(decision.plan)
        return PlanAnswer(
            number=number,
            plan=format_plan(plan),
            chosen=msgspec.structs.replace(_option(chosen), step_s=step_s, copies=num_copies(plan)),
            runner_ups=tuple(_option(other) for other in others[:NUM_RUNNER_UPS]),
            now_step_s=self.now_s,
            now_copies=num_copies(self.now),
            rounds=decision.rounds,
        )


def _option(candidate: Candidate) -> PlanOption:
    return PlanOption(
        strategy=candidate.strategy,
        reason=candidate.reason,
        step_s=candidate.step_time,
        switch_s=candidate.change.time,
        num_bytes=candidate.change.num_bytes,
        copies=candidate.copies,
        verdict=candidate.verdict,
    )


def ordered_for(plan: Plan, slow: dict[str, float]) -> Plan:
    """The same plan; where no rule gives the order of computations, it is made for slow workers."""
    here = tuple((name, slow[name]) for name in sorted(slow) if name in plan.seats)
    return msgspec.structs.replace(plan, schedule=msgspec.structs.replace(plan.schedule, slow=here))


def _is_sound(plan: Plan) -> bool:
    """As workers run it: in an order that depends on the plan alone."""
    try:
        check_plan(plan)
    except HoldfastError:
        return False
    return True


def _step_time(plan: Plan, profile: Profile, slow: dict[str, float]) -> float:
    """In the order in which workers do it, which depends on the plan alone."""
    here = {worker: factor for worker, factor in slow.items() if worker in plan.seats}
    costs = msgspec.structs.replace(profile, slow=here)
    return evaluate(plan, costs, compute_orders(layout_of(plan))).iteration_time


def with_traffic(profile: Profile, share: float) -> Profile:
    """Messages and reductions that take another share of their time."""

    def link(found: Link) -> Link:
        return Link(found.latency * share, found.bandwidth / share if share else 0.0)

    return msgspec.structs.replace(
        profile,
        within_node=link(profile.within_node),
        between_nodes=link(profile.between_nodes),
        links={name: link(found) for name, found in profile.links.items()},
        reduce=link(profile.reduce),
    )


def scaled(profile: Profile, plan: Plan, factor: float) -> Profile:
    """All times of a profile by a factor, those that units carry in the plan included."""

    return msgspec.structs.replace(
        with_traffic(profile, factor),
        unit={unit.name: unit_cost(unit, profile).scaled(factor) for unit in plan.units},
        worker=profile.worker.scaled(factor) if profile.worker is not None else None,
        action=profile.action * factor,
        agree=profile.agree * factor,
        optimizer=profile.optimizer * factor,
        update=profile.update * factor,
    )
