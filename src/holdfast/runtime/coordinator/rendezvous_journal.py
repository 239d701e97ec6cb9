"""The coordinator's journal where hosts join the job: a sequence of records at the rendezvous.

Any host may have the next coordinator, and one that was replaced may not know it yet. Two things
keep their decisions apart:

    the fence   a coordinator that has taken a term reads the journal and adds a record of its own,
                empty but for the term, before it decides anything
    the number  a record gets the number after the last one that its writer knows of, and a number
                is given once. After the fence of a higher term the numbers of all lower ones are
                taken, so nothing that they decide can be recorded any more, and what is not
                recorded is not sent (`effect_queue`). Also where there is nothing to record, it
                is looked whether the next number is taken before anything is done

So the journal is one history, in which every record was written by who knew all before it. Entries
that follow each other share a record. `control.jsonl` in the run directory is a copy, for people
and for a later run on one machine; its writer is replaced with the file, so that of two there
can be no mixture.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.control.journal_entries import JournalEntry
from holdfast.observe.append import append_whole
from holdfast.runtime.coordinator.control_journal import encode_entry, read_entries
from holdfast.runtime.rendezvous.rendezvous import JOURNAL, Rendezvous, Superseded, append_own

_LOG = logging.getLogger(__name__)

LOOK_S = 0.005
"""Between two looks whether there is a successor."""


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True):
    term: int
    entries: tuple[JournalEntry, ...] = ()


class JournalWriter(Protocol):
    """What the coordinator needs of its journal, wherever that lies."""

    entries: tuple[JournalEntry, ...]
    """What was there before."""

    def append(self, entry: JournalEntry) -> str:
        """Why it cannot be taken for now; empty: it is."""

    def sync(self) -> str:
        """To be called before anything is sent; why that has to wait, empty: it need not."""

    def close(self) -> None: ...


_DECODER = msgspec.json.Decoder(JournalRecord)


class RendezvousJournal:
    """(JournalWriter) OSError where the rendezvous cannot be reached at the beginning."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        term: int,
        copy: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`term`: taken before. `copy`: the file; what it holds counts where there is no journal at
        the rendezvous yet, because the job ran on one machine before.
        """
        self._rendezvous, self._term, self._clock = rendezvous, term, clock
        self._looked_s = -LOOK_S
        self.out_of_reach = ""
        """Why nothing may be done for now, though nothing has to be recorded."""
        self._number, self.entries = self._put_fence(copy)
        self._waiting: list[JournalEntry] = []
        self._under_way = b""
        """A record that was tried, and may have been written."""
        self._copy = _Copy(copy, self.entries)

    def _put_fence(self, copy: Path) -> tuple[int, tuple[JournalEntry, ...]]:
        """Our number, and all entries before it."""
        records: list[bytes] = []
        while True:
            records += self._rendezvous.records(JOURNAL, len(records))
            before = [_DECODER.decode(record) for record in records]
            self._check_terms(before)
            earlier = () if before else read_entries(copy)
            fence = JournalRecord(term=self._term, entries=earlier)
            number = len(records) + 1
            if append_own(self._rendezvous, JOURNAL, number, msgspec.json.encode(fence)):
                return number, (*(e for found in before for e in found.entries), *earlier)

    def _check_terms(self, records: Sequence[JournalRecord]) -> None:
        for record in records:
            if record.term > self._term:
                raise Superseded(f"the journal has entries of term {record.term} already")

    def append(self, entry: JournalEntry) -> str:
        self._waiting.append(entry)
        return ""

    def sync(self) -> str:
        if self.out_of_reach:
            return self.out_of_reach
        try:
            while self._under_way or self._waiting:
                self._write()
            self._look()
        except OSError as error:
            return f"the rendezvous cannot be written to: {error.strerror or error}"
        return ""

    def _look(self) -> None:
        """Once for effects that follow each other."""
        if self._clock() - self._looked_s >= LOOK_S:
            if self._rendezvous.has(JOURNAL, self._number + 1):
                raise Superseded(f"the journal was gone on with by another one than that of {self}")
            self._looked_s = self._clock()

    def _write(self) -> None:
        if not self._under_way:
            record = JournalRecord(term=self._term, entries=tuple(self._waiting))
            self._under_way, self._waiting = msgspec.json.encode(record), []
        if not append_own(self._rendezvous, JOURNAL, self._number + 1, self._under_way):
            raise Superseded(f"the journal was gone on with by another one than that of {self}")
        self._number += 1
        self._copy.add(_DECODER.decode(self._under_way).entries)
        self._under_way = b""

    def __str__(self) -> str:
        return f"term {self._term}"

    def close(self) -> None:
        self._copy.close()


class _Copy:
    """Nothing depends on it: a disk that does not take it is logged, once."""

    def __init__(self, path: Path, entries: Sequence[JournalEntry]) -> None:
        self._fd = -1
        try:
            self._begin(path, entries)
        except OSError as error:
            self._give_up(str(error))

    def _begin(self, path: Path, entries: Sequence[JournalEntry]) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(partial, flags, 0o644)
        self.add(entries)
        partial.replace(path)

    def add(self, entries: Sequence[JournalEntry]) -> None:
        if self._fd < 0 or not entries:
            return
        try:
            trouble = append_whole(self._fd, b"".join(map(encode_entry, entries)))
        except OSError as error:
            trouble = str(error)
        if trouble:
            self._give_up(trouble)

    def _give_up(self, trouble: str) -> None:
        _LOG.warning("the copy of the journal is not kept up to date: %s", trouble)
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
