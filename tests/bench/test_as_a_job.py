"""What bench/_as_a_job.py takes for the answer that a job gets."""

import pytest

from holdfast.control.plan_question import PlanAnswer
from support.plan_questions import home_plan, make_question


@pytest.fixture
def as_a_job(load_bench):
    return load_bench("_as_a_job")


@pytest.fixture
def taking(as_a_job, monkeypatch):
    """Three rounds of search that take so many seconds each."""

    def search(*rounds_s):
        now_s = [0.0]

        def answers(question):
            for number, seconds in enumerate(rounds_s, 1):
                now_s[0] += seconds
                yield PlanAnswer(number=question.number, plan="a plan", rounds=number)

        monkeypatch.setattr(as_a_job, "answers", answers)
        monkeypatch.setattr(as_a_job, "process_time", lambda: now_s[0])
        answered = as_a_job.Answered()
        return answered, answered.best(make_question(home_plan(), search_s=1.0))

    return search


def test_the_answer_is_the_one_that_is_there_when_the_time_is_up(taking):
    for rounds_s, best, num_unfinished in (
        ((0.1, 0.1, 0.1), 3, 0),
        ((0.1, 0.1, 5.0), 2, 1),
        ((5.0, 0.1, 0.1), 1, 1),
    ):
        answered, answer = taking(*rounds_s)
        assert answer.rounds == best
        assert answered.num_unfinished == num_unfinished
        assert answered.first_ms == [pytest.approx(1e3 * rounds_s[0])]


def test_regrets_are_counted_and_the_worst_is_named(as_a_job):
    regrets = as_a_job.Regrets()
    regrets.add(1.0, 1.0, "one")
    regrets.add(1.1, 1.0, "two")
    row = regrets.row("a peer")
    assert (row["cells"], row["over 0.5 %"], row["worst cell"]) == (2, 1, "two")
    assert row["mean %"] == pytest.approx(5.0)
