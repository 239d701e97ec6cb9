"""Is a better plan worth the change to it?

Steps are counted over the time that the plan will be of use: from when it is prepared until a
missing worker is back, or until health is expected to change again. A change costs a share of its
preparation, which goes on beside the training and takes processors from it, and the stall of the
switch; where a return is expected, all of the preparation and the way back, too. What it gains has
to be several times that, and a real share of the throughput: a model is not exact, and steps are
not equally long. That is also what keeps a job from going back and forth: each change of health
shortens the time until the next one is expected, and with it what any plan gains.

More copies of the state are worth a slower step: with one copy the next failure goes back to a
snapshot. The planner weighs that; here a plan with more copies (up to two) is taken unless it is
much slower.
"""

from math import isfinite

import msgspec

from holdfast.control.plan_question import PlanAnswer, PlanQuestion
from holdfast.errors import HoldfastError
from holdfast.plan.entering import why_not_entered
from holdfast.plan.text import parse_plan

MIN_GAIN = 0.02
"""Of the throughput, where it is known what has changed: a worker is lost or back, or a probe has
found it slow."""
MIN_UNEXPLAINED_GAIN = 0.04
"""The same where only times have changed: less is within what the model does not know."""
PREPARING = 0.25
"""What the preparation takes from the training, of its own time."""
PAYS_BACK = 2.0
"""What is gained has to be so many times what is paid."""
MAX_LOSS = 0.3
"""Of the throughput, for a second copy of everything."""
ENOUGH_COPIES = 2


class PlanVerdict(msgspec.Struct, frozen=True, kw_only=True):
    is_entered: bool
    reason: str
    gain: float = 0.0
    """Of the throughput, by the model."""


def price_s(prepare_s: float, stall_s: float, *, comes_back: bool) -> float:
    """Where a worker comes back, preparing another plan delays its way back as well."""
    if comes_back:
        return prepare_s + 2 * stall_s
    return PREPARING * prepare_s + stall_s


def is_worth_asking(lasting_s: float, paid_s: float, lasts: float) -> bool:
    """Could a plan pay for itself? A worker that is started again is back before that."""
    return lasting_s >= lasts * paid_s


def decide_on(question: PlanQuestion, answer: PlanAnswer) -> PlanVerdict:
    """Whatever the planner says: what cannot be entered is not entered."""
    verdict = weigh(question, answer)
    if not verdict.is_entered:
        return verdict
    try:
        plan = parse_plan(answer.plan)
        why = why_not_entered(parse_plan(question.now), plan, question.available)
    except HoldfastError as error:
        why = str(error)
    return _stays(why, verdict.gain) if why else verdict


def weigh(question: PlanQuestion, answer: PlanAnswer) -> PlanVerdict:
    chosen = answer.chosen
    if not answer.plan or chosen is None:
        return _stays(answer.error or "nothing can be run", 0.0)
    if answer.plan == question.now:
        return _stays("the plan in force is the best that is known", 0.0)
    if not (isfinite(chosen.step_s) and chosen.step_s > 0 and answer.now_step_s > 0):
        return _stays("the model says nothing about its steps", 0.0)
    gain = answer.now_step_s / chosen.step_s - 1
    if not is_worth_asking(question.lasting_s, _paid_s(question, answer), question.lasts):
        return _stays(f"it would be of use only for the {_lasting(question)}", gain)
    if _is_safer(answer) and gain > -MAX_LOSS:
        words = f"it keeps {chosen.copies} live copies of everything, not {answer.now_copies}"
        return PlanVerdict(is_entered=True, reason=f"{words}; {_steps(answer)}", gain=gain)
    if gain < min_gain(question):
        return _stays(f"{_steps(answer)}: not enough to change for", gain)
    return _paid_back(question, answer, gain)


def min_gain(question: PlanQuestion) -> float:
    health = question.health
    is_explained = health.dead or health.slow or question.now != question.home
    return MIN_GAIN if is_explained else MIN_UNEXPLAINED_GAIN


def _is_safer(answer: PlanAnswer) -> bool:
    assert answer.chosen is not None
    return min(answer.chosen.copies, ENOUGH_COPIES) > answer.now_copies


def _prepare_s(question: PlanQuestion, answer: PlanAnswer) -> float:
    assert answer.chosen is not None
    return max(question.prepare_s, answer.chosen.switch_s)


def _paid_s(question: PlanQuestion, answer: PlanAnswer) -> float:
    prepare_s = _prepare_s(question, answer)
    return price_s(prepare_s, question.stall_s, comes_back=bool(question.returns))


def _paid_back(question: PlanQuestion, answer: PlanAnswer, gain: float) -> PlanVerdict:
    paid_s = _paid_s(question, answer)
    gained_s = max(0.0, question.lasting_s - _prepare_s(question, answer)) * gain
    price = f"gains {gained_s:.1f} s in the {_lasting(question)}, costs {paid_s:.1f} s"
    reason = f"{_steps(answer)}; {price}"
    if gained_s < PAYS_BACK * paid_s:
        return _stays(reason, gain)
    return PlanVerdict(is_entered=True, reason=reason, gain=gain)


def _steps(answer: PlanAnswer) -> str:
    assert answer.chosen is not None
    return f"a step takes {answer.chosen.step_s:.3g} s instead of {answer.now_step_s:.3g} s"


def _lasting(question: PlanQuestion) -> str:
    soonest = min(question.returns, key=lambda back: back.in_s, default=None)
    if soonest is not None and soonest.in_s <= question.horizon_s:
        return f"{soonest.in_s:.0f} s until {soonest.worker} is expected back"
    return f"{question.horizon_s:.0f} s until something is expected to change"


def _stays(reason: str, gain: float) -> PlanVerdict:
    return PlanVerdict(is_entered=False, reason=reason, gain=gain)
