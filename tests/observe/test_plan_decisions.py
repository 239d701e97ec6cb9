import msgspec
import pytest

from holdfast.control.job_events import PlanWeighed
from holdfast.control.plan_worth import weigh
from holdfast.errors import HoldfastError
from holdfast.observe.events import event_fields, parse_event
from holdfast.observe.plan_decisions import considered, question_name, question_text, read_question
from support.plan_questions import home_plan, make_answer, make_question


def test_a_question_is_read_back_and_known_by_its_content():
    question = make_question(home_plan(), ["n0.g1"], {"n0.g0": 2.0}, {"n0.g1": 3.5})
    text = question_text(question)
    name = question_name(text)
    assert read_question(text, name) == question
    with pytest.raises(HoldfastError, match="was changed since"):
        read_question(text.replace("3.5", "3.6"), name)
    with pytest.raises(HoldfastError, match="no question"):
        read_question("{}", question_name("{}"))


def test_the_line_says_what_won_and_why():
    question = make_question(home_plan(), ["n0.g1"])
    answer = make_answer(question, home_plan(replicas=3, tensor=1))
    answer = msgspec.structs.replace(answer, runner_ups=(answer.chosen,))
    line = considered(PlanWeighed(question, answer, weigh(question, answer)), 4)
    assert (line.decision, line.entered, line.strategy) == (4, True, "shrink")
    assert line.shape == "3 replicas x 1 stage"
    assert line.runner_ups == ("shrink: step 0.1 s, a test",)
    assert line.file == question_name(question_text(question))
    assert parse_event(msgspec.json.encode(event_fields(line))) == line
