import os
import threading

import pytest

from holdfast.runtime.worker.progress_page import (
    Progress,
    ProgressPage,
    make_page_file,
    now_ms,
    start_beating,
)


@pytest.fixture
def ends():
    """The worker's and the agent's view of one page."""
    fd = make_page_file()
    worker, agent = ProgressPage(fd), ProgressPage(fd)
    os.close(fd)
    yield worker, agent
    worker.close()
    agent.close()


def test_a_fresh_page_says_nothing(ends):
    assert ends[1].read() == Progress(-1, 0, 0, 0)


def test_what_one_end_writes_the_other_reads(ends):
    worker, agent = ends
    before = now_ms()
    worker.enter(3, 17)
    worker.beat()
    found = agent.read()
    assert (found.step, found.action, found.beats) == (3, 17, 1)
    assert before <= found.since_ms <= now_ms()
    worker.enter(4, 0)
    assert (agent.read().step, agent.read().action) == (4, 0)


def test_step_and_action_always_belong_together(ends):
    worker, agent = ends
    ended = threading.Event()

    def write():
        number = 0
        while not ended.is_set():
            worker.enter(number, number)
            number = (number + 1) % 10_000

    thread = threading.Thread(target=write)
    thread.start()
    places = [agent.read() for _ in range(2000)]
    ended.set()
    thread.join()
    assert all(place.step in (-1, place.action) for place in places)


def test_beats_go_on_until_they_are_ended(ends):
    worker, agent = ends
    ended = start_beating(worker, interval_s=0.001)
    while agent.read().beats < 3:
        pass
    ended.set()
