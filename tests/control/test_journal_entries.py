import msgspec
import pytest

from holdfast.control.journal_entries import (
    Dropped,
    Ended,
    EnteredByAll,
    Fenced,
    JournalEntry,
    NumberTaken,
    Ordered,
    SlowJudged,
    Started,
    StopAsked,
    TermBegun,
    Voided,
    Wanted,
)
from holdfast.control.order import FullPlan, Order
from holdfast.control.report import Member

ORDER = Order(number=4, kind="start", plan=FullPlan("text"), incarnations={"n0.g0": 1})


@pytest.mark.parametrize(
    "entry",
    [
        TermBegun(2),
        NumberTaken(3, "why"),
        Started(Member("n0.g0", 1)),
        Fenced(Member("n0.g0", 1), "exited"),
        Ordered(ORDER, 7, (0, 2)),
        EnteredByAll(4, 9),
        Voided(5),
        Dropped(5),
        Wanted("text", "why", 3),
        SlowJudged(Member("n0.g0", 1), 1.5),
        StopAsked("enough"),
        Ended("done"),
        Ended("state is lost", is_failure=True, worker="n0.g0", is_state_lost=True),
    ],
)
def test_an_entry_reads_as_it_was_written(entry):
    assert msgspec.json.decode(msgspec.json.encode(entry), type=JournalEntry) == entry


def test_an_end_of_an_older_version_is_read():
    line = b'{"type":"ended","reason":"why","is_failure":true,"version":0}'
    assert msgspec.json.decode(line, type=JournalEntry) == Ended("why", is_failure=True)
