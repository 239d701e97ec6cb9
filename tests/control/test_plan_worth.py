"""Is a better plan worth the change?"""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.plan_question import PlanAnswer
from holdfast.control.plan_worth import MIN_GAIN, PAYS_BACK, is_worth_asking, price_s, weigh
from support.plan_questions import home_plan, make_answer, make_question

HOME = home_plan()
SHRUNK = home_plan(tensor=1, replicas=3)


def test_a_plan_that_is_faster_for_long_enough_is_entered():
    question = make_question(HOME, ["n0.g1"])
    verdict = weigh(question, make_answer(question, SHRUNK))
    assert verdict.is_entered
    assert verdict.gain == 1.0
    assert "600 s until something is expected to change" in verdict.reason


def test_not_where_a_worker_is_back_in_a_moment():
    question = make_question(HOME, ["n0.g1"], returns={"n0.g1": 2.0})
    verdict = weigh(question, make_answer(question, SHRUNK))
    assert not verdict.is_entered
    assert "2 s until n0.g1 is expected back" in verdict.reason


def test_a_dead_node_takes_minutes_so_it_pays():
    question = make_question(HOME, ["n0.g1"], returns={"n0.g1": 300.0})
    assert weigh(question, make_answer(question, SHRUNK)).is_entered


def test_a_second_copy_of_everything_is_worth_a_slower_step_but_not_any():
    question = make_question(HOME, ["n0.g1"])
    safer = make_answer(question, SHRUNK, copies=2, step_s=0.25)
    assert weigh(question, safer).is_entered
    assert "2 live copies" in weigh(question, safer).reason
    assert not weigh(question, make_answer(question, SHRUNK, copies=2, step_s=0.5)).is_entered
    soon = make_question(HOME, ["n0.g1"], returns={"n0.g1": 3.0})
    assert not weigh(soon, safer).is_entered
    enough = make_answer(question, SHRUNK, copies=3, now_copies=2, step_s=0.25)
    assert not weigh(question, enough).is_entered


def test_the_plan_in_force_and_no_plan_at_all_change_nothing():
    question = make_question(HOME, ["n0.g1"])
    same = PlanAnswer(number=1, plan=question.now, chosen=make_answer(question, HOME).chosen)
    for answer in (same, PlanAnswer(number=1, error="nothing can be run")):
        assert not weigh(question, answer).is_entered


seconds = st.floats(0.001, 1e5)


@given(now_s=seconds, step_s=seconds, lasting_s=seconds, prepare_s=seconds, back=st.booleans())
def test_what_is_entered_pays_for_itself(now_s, step_s, lasting_s, prepare_s, back):
    returns = {"n0.g1": lasting_s} if back else {}
    question = make_question(
        HOME, ["n0.g1"], returns=returns, horizon_s=lasting_s, prepare_s=prepare_s
    )
    verdict = weigh(question, make_answer(question, SHRUNK, step_s=step_s, now_step_s=now_s))
    if verdict.is_entered:
        prepare_s = max(prepare_s, 1.0)
        paid_s = price_s(prepare_s, 0.2, comes_back=back)
        steps_kept = lasting_s / now_s
        steps_changed = (prepare_s - paid_s) / now_s + (lasting_s - prepare_s) / step_s
        assert steps_changed > steps_kept
        assert (lasting_s - prepare_s) * (now_s / step_s - 1) >= PAYS_BACK * paid_s * (1 - 1e-9)


@given(now_s=st.floats(0.01, 10), noise=st.floats(1 - MIN_GAIN / 3, 1 + MIN_GAIN / 3))
def test_there_and_back_is_never_both_worth_it(now_s, noise):
    """A model that wavers by a third of the least gain does not make a job change twice."""
    question = make_question(HOME, ["n0.g1"])
    for step_s in (now_s * 0.9, now_s * 0.97, now_s):
        there = weigh(question, make_answer(question, SHRUNK, step_s=step_s, now_step_s=now_s))
        back = make_answer(question, HOME, step_s=now_s * noise, now_step_s=step_s)
        assert not (there.is_entered and weigh(question, back).is_entered)


def test_asking_is_pointless_where_nothing_can_pay():
    assert not is_worth_asking(5.0, 1.5, 4.0)
    assert is_worth_asking(600.0, 1.5, 4.0)


def test_a_small_gain_is_enough_where_it_is_known_what_has_changed():
    small = 1 / 1.03
    known = make_question(HOME, slow={"n0.g1": 1.1}, now=HOME)
    drifted = make_question(HOME, now=HOME)
    for question, is_entered in ((known, True), (drifted, False)):
        answer = make_answer(question, SHRUNK, now_step_s=0.1, step_s=0.1 * small)
        assert weigh(question, answer).is_entered == is_entered
