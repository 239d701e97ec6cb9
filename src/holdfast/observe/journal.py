"""Files that grow by a line: the journal (what happened and why) and the metrics (every step).

A line is one JSON object, written in one go; of a run that was killed, at most the last line is
torn, and reading leaves it out. Journal lines are on disk before the writer goes on. While the disk
is full, lines wait in memory, and are written in their order once there is room.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from holdfast.observe.append import append_whole, sync_file
from holdfast.observe.events import AnyEvent, Event, StepDone, event_fields, parse_event

MAX_WAITING = 100_000
"""Lines, while the disk is full; more are given up, the oldest first."""


class LineFile:
    """Appends JSON lines."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self._sync = sync
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self.trouble = ""
        """Why lines wait; empty: they do not."""
        self._end_torn_line()

    def _end_torn_line(self) -> None:
        """Of a writer that was killed: what follows is not glued to it."""
        if self.size and os.pread(self._fd, 1, self.size - 1) != b"\n":
            self._waiting.append(b"\n")

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def write(self, line: object) -> None:
        self._waiting.append(msgspec.json.encode(line) + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as there is room."""
        while self._waiting:
            self.trouble = append_whole(self._fd, self._waiting[0])
            if self.trouble:
                return
            self._waiting.popleft()
        if self._sync:
            sync_file(self._fd)

    def sync(self) -> None:
        sync_file(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class Journal:
    """Sends steps to the metrics and everything else to the journal."""

    def __init__(self, journal: Path, metrics: Path, now: Callable[[], str]) -> None:
        """`now`: the stamp of a line."""
        self._events, self._steps = LineFile(journal, sync=True), LineFile(metrics)
        self._now = now

    def write(self, event: Event, at: str = "") -> None:
        """`at`: a stamp, where it happened some time ago."""
        fields = event_fields(event)
        if isinstance(event, StepDone):
            del fields["event"], fields["reason"]
            self._steps.write({"time": at or self._now(), **fields})
        else:
            self._events.write({"time": at or self._now(), **fields})

    def flush(self) -> None:
        self._events.flush()
        self._steps.flush()

    def sync(self) -> None:
        """Steps, too, are on disk from now on."""
        self._steps.sync()

    @property
    def trouble(self) -> str:
        """Why lines wait; empty: they do not."""
        return self._events.trouble or self._steps.trouble

    @property
    def num_waiting(self) -> int:
        return self._events.num_waiting + self._steps.num_waiting

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes in the journal and in the metrics."""
        return self._events.size, self._steps.size

    def close(self) -> None:
        self._events.close()
        self._steps.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; torn ones are left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                with suppress(msgspec.DecodeError):
                    yield msgspec.json.decode(line)


def read_journal(path: Path) -> list[AnyEvent]:
    return [parse_event(msgspec.json.encode(fields)) for fields in read_lines(path)]


def read_metrics(path: Path) -> list[StepDone]:
    return [msgspec.convert({"event": "step_done", **f}, StepDone) for f in read_lines(path)]
