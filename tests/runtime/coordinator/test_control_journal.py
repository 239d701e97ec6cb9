import errno
import os

import pytest

from holdfast.control.journal_entries import Fenced, NumberTaken, TermBegun
from holdfast.control.report import Member
from holdfast.errors import HoldfastError
from holdfast.runtime.coordinator.control_journal import ControlJournal

ENTRIES = (TermBegun(1), NumberTaken(4, "why"), Fenced(Member("n0.g1", 2), "gone"))


class Disk:
    """Stands in for fsync: one that fails loses what it was to put on the disk, as Linux may do."""

    def __init__(self, path, monkeypatch):
        self.path, self.num_failures, self.on_disk = path, 0, b""
        monkeypatch.setattr("os.fsync", self.sync)

    def sync(self, fd):
        found = os.pread(fd, 10**6, 0)
        if not self.num_failures:
            self.on_disk = found
            return
        self.num_failures -= 1
        lost = self.on_disk + bytes(len(found) - len(self.on_disk))
        with self.path.open("r+b") as file:
            file.write(lost)
        raise OSError(errno.EIO, os.strerror(errno.EIO))


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


def test_what_a_failed_sync_has_lost_is_written_again(tmp_path, monkeypatch):
    disk = Disk(tmp_path / "c", monkeypatch)
    journal = write(tmp_path / "c", ENTRIES[:1])
    disk.num_failures = 2
    for entry in ENTRIES[1:]:
        journal.append(entry)
        assert journal.sync() == "Input/output error"
    assert journal.sync() == ""
    journal.close()
    assert disk.path.read_bytes() == disk.on_disk
    assert ControlJournal(disk.path).entries == ENTRIES


def test_a_successor_does_not_trust_what_it_has_read(tmp_path, monkeypatch):
    """The sync of the one before may have failed, and what is read may be nowhere but in memory."""
    write(tmp_path / "c").close()
    disk = Disk(tmp_path / "c", monkeypatch)
    journal = ControlJournal(tmp_path / "c")
    disk.path.write_bytes(bytes(disk.path.stat().st_size))
    journal.append(TermBegun(2))
    assert journal.sync() == ""
    journal.close()
    assert ControlJournal(disk.path).entries == (*ENTRIES, TermBegun(2))


def test_a_disk_that_is_full_while_it_is_written_again_is_trouble(tmp_path, monkeypatch):
    write(tmp_path / "c").close()
    journal = ControlJournal(tmp_path / "c")
    journal.append(TermBegun(2))
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", lambda fd, data, offset: 0)
        assert journal.sync() == "No space left on device"
    assert journal.sync() == ""
    journal.close()
