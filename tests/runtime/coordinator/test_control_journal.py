import pytest

from holdfast.control.journal_entries import Fenced, NumberTaken, TermBegun
from holdfast.control.report import Member
from holdfast.errors import HoldfastError
from holdfast.runtime.coordinator.control_journal import ControlJournal

ENTRIES = (TermBegun(1), NumberTaken(4, "why"), Fenced(Member("n0.g1", 2), "gone"))


def write(path, entries=ENTRIES):
    journal = ControlJournal(path)
    for entry in entries:
        journal.append(entry)
    journal.sync()
    return journal


def test_a_successor_reads_what_was_written(tmp_path):
    write(tmp_path / "c").close()
    journal = write(tmp_path / "c", [TermBegun(2)])
    assert journal.entries == ENTRIES
    journal.close()
    assert ControlJournal(tmp_path / "c").entries == (*ENTRIES, TermBegun(2))


def test_one_coordinator_at_a_time(tmp_path):
    journal = write(tmp_path / "c")
    with pytest.raises(HoldfastError, match="in use by another coordinator"):
        ControlJournal(tmp_path / "c")
    journal.close()
    ControlJournal(tmp_path / "c").close()


def test_a_torn_line_is_cut_off_for_good(tmp_path):
    path = tmp_path / "c"
    write(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"numb')
    write(path, [TermBegun(2)]).close()
    assert path.read_bytes().startswith(whole)
    assert ControlJournal(path).entries == (*ENTRIES, TermBegun(2))


def test_syncs_are_shared(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    journal = write(tmp_path / "c")
    journal.sync()
    assert len(synced) == 1
    journal.close()
