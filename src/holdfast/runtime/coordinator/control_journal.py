"""control.jsonl: the coordinator's own journal, from which its successor goes on.

One coordinator at a time: the file is locked for the life of the process. An entry is durable
before anything that depends on it is sent; entries that follow each other share one sync.

A sync that succeeds after one that failed proves nothing (`append`): what the failed one was to put
on the disk is written again, over itself, before the next sync. Whether the last sync of the
coordinator before has failed is not known, so a successor begins with that, for the whole file.
"""

import fcntl
import os
from pathlib import Path

import msgspec

from holdfast.control.journal_entries import JournalEntry
from holdfast.errors import HoldfastError
from holdfast.observe.append import append_whole, sync_file, write_over

CONTROL = "control.jsonl"
_DECODER = msgspec.json.Decoder(JournalEntry)
_ENCODER = msgspec.json.Encoder()


class ControlJournal:
    def __init__(self, path: Path) -> None:
        # Not to append: what is there may have to be written again. No other process writes.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise HoldfastError(
                f"{path} is in use by another coordinator; a job has one at a time"
            ) from None
        found = self._read()
        self.entries = _decode(found)
        """What was there before."""
        self._num_synced, self._unsynced = 0, bytearray(found)
        """So many bytes are on disk; those behind them may not be."""
        self._is_in_doubt = bool(found)
        """What is not synced has to be written again."""
        self._is_synced = True
        """Nothing was added since it was."""

    def _read(self) -> bytes:
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        whole = _whole_lines(data)
        if len(whole) < len(data):
            # Torn by a crash: it was never synced, so nothing depends on it.
            os.ftruncate(self._fd, len(whole))
        return whole

    def append(self, entry: JournalEntry) -> str:
        """Why the disk does not take it; empty: it is written."""
        self._is_synced = False
        line = encode_entry(entry)
        os.lseek(self._fd, 0, os.SEEK_END)
        trouble = append_whole(self._fd, line)
        if not trouble:
            self._unsynced += line
        return trouble

    def sync(self) -> str:
        """To be called before anything is sent; why that has to wait, empty: it need not."""
        if self._is_synced:
            return ""
        trouble = self._write_again() or sync_file(self._fd)
        self._is_in_doubt = bool(trouble)
        if not trouble:
            self._num_synced += len(self._unsynced)
            self._unsynced.clear()
            self._is_synced = True
        return trouble

    def _write_again(self) -> str:
        if not self._is_in_doubt:
            return ""
        return write_over(self._fd, bytes(self._unsynced), self._num_synced)

    def close(self) -> None:
        os.close(self._fd)


def encode_entry(entry: JournalEntry) -> bytes:
    """As a line."""
    return _ENCODER.encode(entry) + b"\n"


def read_entries(path: Path) -> tuple[JournalEntry, ...]:
    """Of a file that no coordinator has open."""
    return _decode(_whole_lines(path.read_bytes())) if path.is_file() else ()


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def _decode(lines: bytes) -> tuple[JournalEntry, ...]:
    return tuple(_DECODER.decode(line) for line in lines.splitlines())
