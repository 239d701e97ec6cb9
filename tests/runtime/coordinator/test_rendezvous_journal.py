"""The journal at the rendezvous is one history, with any number of writers."""

import pytest

from holdfast.control.journal_entries import NumberTaken, RunBegun, TermBegun
from holdfast.runtime.coordinator.control_journal import ControlJournal, read_entries
from holdfast.runtime.coordinator.rendezvous_journal import RendezvousJournal
from holdfast.runtime.rendezvous.rendezvous import Superseded, open_rendezvous


@pytest.fixture
def place(tmp_path):
    return open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "control.jsonl"


def write(journal, *entries) -> None:
    for entry in entries:
        assert journal.append(entry) == ""
    assert journal.sync() == ""


def test_a_successor_reads_what_was_written(place, copy) -> None:
    first = RendezvousJournal(place, 1, copy)
    assert first.entries == ()
    write(first, TermBegun(1), RunBegun(1))
    write(first, NumberTaken(1))
    second = RendezvousJournal(place, 2, copy)
    assert second.entries == (TermBegun(1), RunBegun(1), NumberTaken(1))
    write(second, TermBegun(2))
    assert RendezvousJournal(place, 3, copy).entries == (*second.entries, TermBegun(2))


def test_one_that_was_replaced_records_nothing(place, copy) -> None:
    first = RendezvousJournal(place, 1, copy, clock=iter(range(100)).__next__)
    write(first, TermBegun(1))
    second = RendezvousJournal(place, 2, copy)
    with pytest.raises(Superseded, match="term 1"):
        first.sync()  # also without anything to record
    first.append(NumberTaken(1))
    with pytest.raises(Superseded, match="term 1"):
        first.sync()
    write(second, TermBegun(2))
    assert RendezvousJournal(place, 3, copy).entries == (TermBegun(1), TermBegun(2))


def test_a_term_that_comes_too_late_begins_nothing(place, copy) -> None:
    RendezvousJournal(place, 5, copy)
    with pytest.raises(Superseded, match="entries of term 5"):
        RendezvousJournal(place, 4, copy)


def test_what_was_written_before_the_fence_counts(place, copy) -> None:
    """The one before adds a record after its successor has read, and before its fence."""
    first = RendezvousJournal(place, 1, copy)
    raced = []

    class Racing:
        def records(self, sequence, after=0):
            found = place.records(sequence, after)
            if not raced:
                raced.append(True)
                write(first, NumberTaken(7))
            return found

        def append(self, *args):
            return place.append(*args)

    second = RendezvousJournal(Racing(), 2, copy)
    assert second.entries == (NumberTaken(7),)
    first.append(NumberTaken(8))
    with pytest.raises(Superseded):
        first.sync()


def test_a_lost_answer_is_no_conflict(place, copy) -> None:
    lost = []

    class Forgetful:
        def has(self, *args):
            return place.has(*args)

        def records(self, *args):
            return place.records(*args)

        def append(self, sequence, number, record):
            done = place.append(sequence, number, record)
            if number == 2 and not lost:
                lost.append(True)
                raise OSError("the answer was lost")
            return done

    journal = RendezvousJournal(Forgetful(), 1, copy)
    journal.append(TermBegun(1))
    assert "the answer was lost" in journal.sync()
    journal.append(NumberTaken(1))
    assert journal.sync() == ""
    assert RendezvousJournal(place, 2, copy).entries == (TermBegun(1), NumberTaken(1))


def test_while_it_is_out_of_reach_everything_waits(place, tmp_path, copy) -> None:
    journal = RendezvousJournal(place, 1, copy)
    journal.out_of_reach = "no answer"
    assert journal.sync() == "no answer"
    journal.out_of_reach = ""
    (tmp_path / "job").rename(tmp_path / "away")
    journal.append(TermBegun(1))
    assert "the rendezvous cannot be written to" in journal.sync()
    (tmp_path / "away").rename(tmp_path / "job")
    assert journal.sync() == ""
    assert RendezvousJournal(place, 2, copy).entries == (TermBegun(1),)


def test_a_job_that_ran_on_one_machine_goes_on(place, copy) -> None:
    alone = ControlJournal(copy)
    write(alone, TermBegun(1), NumberTaken(3))
    alone.close()
    first = RendezvousJournal(place, 1, copy)
    assert first.entries == (TermBegun(1), NumberTaken(3))
    write(first, TermBegun(2))
    second = RendezvousJournal(place, 2, copy)
    assert second.entries == (TermBegun(1), NumberTaken(3), TermBegun(2))
    assert read_entries(copy) == second.entries


def test_the_copy_has_one_writer(place, copy) -> None:
    first = RendezvousJournal(place, 1, copy)
    write(first, TermBegun(1))
    second = RendezvousJournal(place, 2, copy)
    write(second, TermBegun(2))
    with pytest.raises(Superseded):
        write(first, NumberTaken(1))
    assert read_entries(copy) == (TermBegun(1), TermBegun(2))


def test_nothing_depends_on_the_copy(place, tmp_path) -> None:
    write(RendezvousJournal(place, 1, tmp_path / "gone" / "control.jsonl"), TermBegun(1))
