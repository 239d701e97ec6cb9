"""Whether a plan is left again, from the steps before it and under it."""

import pytest

from holdfast.control.plan_trial import NUM_AFTER, NUM_BEFORE, PlanTrial
from support.plan_questions import home_plan, make_answer, make_question

PLAN = home_plan(replicas=4, tensor=1)


def tried(
    before_s: float,
    after_s: float,
    *,
    promised_s: float = 0.1,
    num_before: int = NUM_BEFORE,
    num_after: int = NUM_AFTER,
    health_after: int = 1,
    now_s: float = 0.0,
) -> str:
    """The plan that is gone back to. `now_s`: what the model says of the plan before."""
    question = make_question(home_plan())
    answer = make_answer(question, PLAN, step_s=promised_s, now_step_s=now_s or before_s)
    trial = PlanTrial()
    for seconds in [0.01, *num_before * [before_s]]:  # the first is of another health
        trial.stepped(1, seconds, health_epoch=1 if seconds == before_s else 0)
    trial.begin(question, answer, health_epoch=1)
    for seconds in [9.9, *num_after * [after_s]]:  # the first of a plan takes longer
        trial.stepped(2, seconds, health_after)
    plan, _ = trial.better(answer.plan, epoch=2, health_epoch=health_after)
    assert plan in ("", question.now)
    return plan


def test_a_plan_is_left_if_it_is_slower_than_the_one_before():
    assert tried(0.2, 0.25)
    assert not tried(0.2, 0.205)
    assert not tried(0.2, 0.15)


@pytest.mark.parametrize(
    "known_too_little",
    [
        {"num_after": NUM_AFTER - 1},
        {"health_after": 2},
        {"promised_s": 0.3},  # taken for its copies
    ],
)
def test_and_stays_where_steps_cannot_be_compared_or_were_not_to_be_shorter(known_too_little):
    assert not tried(0.2, 0.4, **known_too_little)


def test_where_too_few_steps_were_measured_before_the_model_says_what_they_take():
    assert tried(0.2, 0.25, num_before=NUM_BEFORE - 1)
    assert tried(0.3, 0.25, num_before=0, now_s=0.2)
    assert not tried(0.2, 0.205, num_before=0)
    assert not tried(0.2, 0.25, num_before=NUM_BEFORE - 1, now_s=0.3)
    assert not tried(0.3, 0.25, num_before=NUM_BEFORE, now_s=0.2), "measured steps count for more"


@pytest.mark.parametrize(("back_s", "is_left"), [(0.3, True), (0.2, False)])
@pytest.mark.parametrize("num_before", [0, NUM_BEFORE])
def test_a_plan_that_was_gone_back_to_is_on_trial_itself(num_before, back_s, is_left):
    """The model may have been wrong about it, or the machine become busy at the change."""
    question = make_question(home_plan())
    answer = make_answer(question, PLAN, step_s=0.1, now_step_s=0.2)
    trial = PlanTrial()
    for seconds in [9.9, *num_before * [0.2]] if num_before else ():
        trial.stepped(1, seconds, 1)
    trial.begin(question, answer, health_epoch=1)
    for seconds in [9.9, 9.9, *NUM_AFTER * [0.25]]:  # the first is of another health
        trial.stepped(2, seconds, 1)
    plan, reason = trial.better(answer.plan, 2, 1)
    assert plan == question.now
    verb = "took" if num_before else "should take"
    assert f"the one before it {verb} 0.2 s" in reason
    for seconds in [9.9, *NUM_AFTER * [back_s]]:
        trial.stepped(3, seconds, 1)
    plan, reason = trial.better(question.now, 3, 1)
    assert plan == (answer.plan if is_left else "")
    for seconds in [9.9, *NUM_AFTER * [0.5]]:
        trial.stepped(4, seconds, 1)
    assert trial.better(plan or question.now, 4, 1) == ("", ""), "then both were measured"


def test_what_another_plan_takes_says_nothing():
    question = make_question(home_plan())
    trial = PlanTrial()
    for step in range(20):
        trial.stepped(1 + step // 5, 0.1 * (1 + step // 5), 1)
    trial.begin(question, make_answer(question, PLAN, step_s=0.1, now_step_s=0.2), 1)
    assert trial.better("another", 4, 1) == ("", "")
