"""The advisor as a process: questions in, answers out, and it ends with its input."""

import io
import subprocess
import sys

import msgspec
import pytest

from holdfast.advisor.answer import answers
from holdfast.advisor.main import best_answer, read_question, write_answer
from holdfast.control.plan_question import PlanAnswer, PlanQuestion
from support.plan_questions import home_plan, make_question


def packed(question: PlanQuestion) -> bytes:
    body = msgspec.msgpack.encode(question)
    return len(body).to_bytes(4, "big") + body


def unpacked(data: bytes) -> list[PlanAnswer]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(msgspec.msgpack.decode(data[4 : 4 + size], type=PlanAnswer))
        data = data[4 + size :]
    return found


def test_messages_are_read_whole_or_not_at_all():
    question = make_question(home_plan(), ["n0.g1"])
    data = packed(question)
    source = io.BytesIO(data + data[:-1])
    assert read_question(source) == question
    with pytest.raises(msgspec.DecodeError):
        read_question(source)
    assert read_question(io.BytesIO(b"\0\0")) is None


def test_the_first_answer_comes_in_any_case_and_the_last_if_there_is_time():
    question = make_question(home_plan(), ["n0.g1"])
    hurried = msgspec.structs.replace(question, search_s=0.0)
    assert best_answer(hurried).rounds == 1
    assert best_answer(question) == list(answers(question))[-1]


def test_a_question_that_cannot_be_answered_is_answered_with_that():
    question = msgspec.structs.replace(make_question(home_plan(), ["n0.g1"]), now="no plan")
    answer = best_answer(question)
    assert answer.number == question.number
    assert "not a plan file" in answer.error
    target = io.BytesIO()
    write_answer(target, answer)
    assert unpacked(target.getvalue()) == [answer]


@pytest.mark.process
def test_it_ends_with_its_input():
    question = make_question(home_plan(), ["n0.g1"], search_s=0.0)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.advisor.main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(packed(question))
        process.stdin.flush()
        size = int.from_bytes(process.stdout.read(4), "big")
        answer = msgspec.msgpack.decode(process.stdout.read(size), type=PlanAnswer)
        assert answer == best_answer(question)
        process.stdin.close()
        assert process.wait(30) == 0
