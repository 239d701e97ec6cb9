"""Decisions about plans, as the run directory keeps them.

A line of the journal says what was decided and why; the question it answers lies in a file of its
own, named by its content. The same question asked again, with as many rounds of search, gives the
same line: that is what `holdfast plan replay` checks.
"""

from hashlib import sha256

import msgspec

from holdfast.control.job_events import PlanWeighed
from holdfast.control.plan_question import PlanAnswer, PlanOption, PlanQuestion
from holdfast.control.plan_worth import PlanVerdict
from holdfast.errors import HoldfastError
from holdfast.observe.events import PlanConsidered
from holdfast.observe.run_directory import DECISIONS
from holdfast.observe.timeline_view import describe_shape
from holdfast.plan.text import parse_plan

_QUESTION = msgspec.json.Decoder(PlanQuestion)


def question_text(question: PlanQuestion) -> str:
    return msgspec.json.format(msgspec.json.encode(question), indent=1).decode() + "\n"


def question_name(text: str) -> str:
    """Below the run directory."""
    return f"{DECISIONS}/{sha256(text.encode()).hexdigest()[:16]}.json"


def read_question(text: str, name: str) -> PlanQuestion:
    """The question of a file, if it still is what its name says."""
    if question_name(text) != name:
        raise HoldfastError(f"{name} was changed since: its content is that of another decision")
    try:
        return _QUESTION.decode(text)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"{name} is no question to the planner: {error}") from None


def considered(weighed: PlanWeighed, number: int) -> PlanConsidered:
    """The line of the journal; `number` counts the decisions of a run."""
    text = question_text(weighed.question)
    return line_of(
        weighed.question, weighed.answer, weighed.verdict, number=number, file=question_name(text)
    )


def line_of(
    question: PlanQuestion, answer: PlanAnswer, verdict: PlanVerdict, *, number: int, file: str
) -> PlanConsidered:
    chosen = answer.chosen
    return PlanConsidered(
        decision=number,
        epoch=question.epoch,
        asked=question.reason,
        entered=verdict.is_entered,
        reason=verdict.reason,
        strategy=chosen.strategy if chosen is not None else "",
        shape=describe_shape(parse_plan(answer.plan)) if answer.plan else "",
        plan=sha256(answer.plan.encode()).hexdigest()[:16],
        gain=verdict.gain,
        step_s=chosen.step_s if chosen is not None else 0.0,
        now_step_s=answer.now_step_s,
        runner_ups=tuple(describe_option(option) for option in answer.runner_ups),
        rounds=answer.rounds,
        file=file,
    )


def describe_option(option: PlanOption) -> str:
    return f"{option.strategy}: step {option.step_s:.4g} s, {option.verdict or option.reason}"
