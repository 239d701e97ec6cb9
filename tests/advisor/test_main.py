"""The advisor as a process: questions in, answers out, and it ends with its input."""

import io
import subprocess
import sys
import threading

import msgspec
import pytest

from holdfast.advisor import main
from holdfast.advisor.answer import answers
from holdfast.advisor.main import Reply, read_question, reply_to, write_answer
from holdfast.control.plan_question import PlanAnswer, PlanQuestion
from holdfast.errors import HoldfastError
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


def best_answer(question: PlanQuestion) -> PlanAnswer:
    given: list[PlanAnswer] = []
    reply_to(question, given.append)
    (answer,) = given
    return answer


def test_messages_are_read_whole_or_not_at_all():
    question = make_question(home_plan(), ["n0.g1"])
    data = packed(question)
    source = io.BytesIO(data + data[:-1])
    assert read_question(source) == question
    with pytest.raises(msgspec.DecodeError):
        read_question(source)
    assert read_question(io.BytesIO(b"\0\0")) is None


def test_the_first_answer_comes_in_any_case_and_the_last_if_there_is_time():
    question = make_question(home_plan(), ["n0.g1"], search_s=60.0)
    hurried = msgspec.structs.replace(question, search_s=0.0)
    assert best_answer(hurried).rounds == 1
    assert best_answer(question) == list(answers(question))[-1]


def test_a_round_that_takes_long_does_not_hold_back_the_answer_before_it(monkeypatch):
    """The search goes on only when the answer was given; then the question is left."""
    given, is_given = [], threading.Event()
    rounds = []

    def give(answer):
        given.append(answer)
        is_given.set()

    def slow_answers(question):
        for number in (1, 2, 3):
            rounds.append(number)
            yield PlanAnswer(number=question.number, rounds=number)
            assert is_given.wait(30)

    monkeypatch.setattr(main, "answers", slow_answers)
    reply_to(make_question(home_plan(), search_s=0.05), give)
    assert [answer.rounds for answer in given] == [1]
    assert rounds == [1, 2]


def test_a_search_that_fails_after_its_answer_was_given_is_silent(monkeypatch):
    is_given, given = threading.Event(), []

    def give(answer):
        given.append(answer)
        is_given.set()

    def failing(question):
        yield PlanAnswer(number=question.number, rounds=1)
        assert is_given.wait(30)
        raise HoldfastError("too late to matter")

    monkeypatch.setattr(main, "answers", failing)
    reply_to(make_question(home_plan(), search_s=0.05), give)
    assert [answer.error for answer in given] == [""]


def test_an_answer_is_given_once_whoever_gives_it():
    given = []
    reply = Reply(given.append, 0.0)
    first, second = PlanAnswer(number=1, rounds=1), PlanAnswer(number=1, rounds=2)
    assert not reply.found(first)
    assert not reply.found(second)
    reply.end()
    assert given == [first]


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
