"""The planner's process, as the coordinator keeps it: asked, lost, started again, ended."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import psutil
import pytest

from holdfast.advisor.answer import answer_after
from holdfast.control.plan_question import PlanAnswer
from holdfast.runtime.coordinator.advisor_process import AdvisorProcess
from support.plan_questions import home_plan, make_question

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

QUESTION = make_question(home_plan(), ["n0.g1"], search_s=0.0)


class Answers:
    """What came, to be waited for."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[PlanAnswer] = asyncio.Queue()

    def __call__(self, answer: PlanAnswer) -> None:
        self.queue.put_nowait(answer)

    async def next(self) -> PlanAnswer:
        async with asyncio.timeout(60):
            return await self.queue.get()


def run(story) -> None:
    async def live() -> None:
        answers = Answers()
        advisor = AdvisorProcess(answers)
        try:
            await story(advisor, answers)
        finally:
            await advisor.close()
        assert advisor.pid == 0

    asyncio.run(live())


def numbered(number: int):
    return msgspec.structs.replace(QUESTION, number=number)


def test_it_answers_and_is_kept():
    async def story(advisor, answers):
        advisor.ask(numbered(1))
        assert await answers.next() == answer_after(numbered(1), 1)
        pid = advisor.pid
        assert psutil.Process(pid).nice() == 19
        advisor.ask(numbered(2))
        assert (await answers.next()).number == 2
        assert advisor.pid == pid

    run(story)


def test_it_has_the_lowest_priority_whatever_its_coordinator_has():
    async def story(advisor, answers):
        advisor.ask(numbered(1))
        await answers.next()
        assert psutil.Process(advisor.pid).nice() == 19

    def live() -> None:
        with suppress(PermissionError):  # who may not have more than others has nothing to inherit
            os.setpriority(os.PRIO_PROCESS, 0, -5)  # of this thread, and of what it starts
        run(story)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(live).result()


def test_one_that_is_killed_is_an_answer_and_the_next_question_starts_another():
    async def story(advisor, answers):
        advisor.ask(numbered(1))
        await answers.next()
        pid = advisor.pid
        os.kill(pid, signal.SIGSTOP)  # so that it cannot answer before it is killed
        advisor.ask(numbered(2))
        os.kill(pid, signal.SIGKILL)
        lost = await answers.next()
        assert (lost.number, lost.plan) == (2, "")
        assert "process ended" in lost.error
        advisor.ask(numbered(3))
        assert (await answers.next()).number == 3
        assert advisor.pid not in (0, pid)

    run(story)


def test_it_is_gone_when_its_owner_closes_it_also_in_the_middle_of_a_search():
    gone = []

    async def story(advisor, answers):
        advisor.ask(numbered(1))
        await answers.next()
        gone.append(psutil.Process(advisor.pid))
        advisor.ask(msgspec.structs.replace(numbered(2), search_s=1000.0))

    run(story)
    assert not gone[0].is_running()


def test_one_that_cannot_be_started_is_an_answer_and_a_question_in_reply_starts_another(
    monkeypatch,
):
    async def story(advisor, answers):
        def reply(answer):
            answers(answer)
            if answer.error:
                monkeypatch.undo()
                advisor.ask(numbered(2))

        advisor._on_answer = reply
        monkeypatch.setattr("sys.executable", os.devnull)
        advisor.ask(numbered(1))
        lost = await answers.next()
        assert (lost.number, lost.plan) == (1, "")
        assert "cannot be started: [Errno 13]" in lost.error
        assert (await answers.next()).number == 2

    run(story)
