"""Nothing is done before what was recorded ahead of it is on disk."""

import pytest

from holdfast.control.effects import Explain, Finish, Record
from holdfast.control.journal_entries import TermBegun
from holdfast.runtime.coordinator.effect_queue import LAST_WAIT_MS, EffectQueue

TERM = Record(TermBegun(1))
SAY = Explain("a", {})
END = Finish(3, "finished", "")


class Journal:
    """Takes lines, or not."""

    def __init__(self):
        self.trouble, self.entries = "", []

    def append(self, entry):
        if not self.trouble:
            self.entries.append(entry)
        return self.trouble

    def sync(self):
        return self.trouble


@pytest.fixture
def journal():
    return Journal()


@pytest.fixture
def done():
    return []


@pytest.fixture
def queue(journal, done):
    return EffectQueue(journal, done.append, done.append)


def test_in_their_order(queue, journal, done):
    queue.add([SAY, TERM, SAY], 0)
    assert done == [SAY, TERM.entry, SAY]
    assert journal.entries == [TERM.entry]
    assert queue.trouble == ""


def test_on_a_full_disk_they_wait(queue, journal, done):
    journal.trouble = "full"
    queue.add([TERM, SAY], 0)
    queue.add([SAY], 5)
    assert done == []
    assert queue.trouble == "full"
    journal.trouble = ""
    queue.carry_out(10)
    assert done == [TERM.entry, SAY, SAY]
    assert queue.trouble == ""


def test_the_end_does_not_wait_for_ever(queue, journal, done):
    journal.trouble = "full"
    queue.add([TERM, SAY, END], 0)
    queue.carry_out(LAST_WAIT_MS - 1)
    assert done == []
    queue.carry_out(LAST_WAIT_MS)
    assert done == [TERM.entry, SAY, END]
