"""A full disk is said once, and once more when it is not full any more."""

import asyncio

import pytest

from holdfast.observe.events import WritingResumed
from holdfast.runtime.coordinator.disk_watch import DiskWatch


class Part:
    """The effect queue and the run log, as far as they are looked at."""

    def __init__(self):
        self.trouble, self.num_waiting, self.told, self.tries = "", 0, [], 0

    def tell(self, events):
        self.told += events

    def flush(self):
        self.tries += 1
        if not self.trouble:
            self.num_waiting = 0

    def carry_out(self, now_ms):
        self.tries += 1


@pytest.fixture
def effects():
    return Part()


@pytest.fixture
def run_log():
    return Part()


@pytest.fixture
def said():
    return []


@pytest.fixture
def watch(effects, run_log, said):
    return DiskWatch(effects, run_log, said.append)


def test_nothing_to_say(watch, effects, run_log, said):
    assert not watch.look()
    watch.try_again()
    assert (said, run_log.told, effects.tries) == ([], [], 0)
    assert watch.due_ms(7) == 7


def test_a_full_disk(watch, effects, run_log, said):
    run_log.trouble, run_log.num_waiting = "full", 3
    assert watch.look()
    assert not watch.look()
    assert said == ["full"]
    assert watch.due_ms(10**15) < 10**15
    run_log.trouble = ""
    watch.try_again()
    (event,) = run_log.told
    assert isinstance(event, WritingResumed)
    assert event.lines == 3
    assert not watch.look()
    assert len(run_log.told) == 1


def test_at_the_end(watch, run_log, monkeypatch):
    run_log.num_waiting = 2
    assert asyncio.run(watch.write_last()) == 0
    run_log.trouble, run_log.num_waiting = "full", 2
    monkeypatch.setattr("holdfast.runtime.coordinator.disk_watch.LAST_WAIT_MS", 0)
    assert asyncio.run(watch.write_last()) == 2
