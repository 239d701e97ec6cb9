"""Files that grow by a line: the journal (what happened and why) and the metrics (every step).

A line is one JSON object, written in one go; of a run that was killed, at most the last line is
torn, and reading leaves it out. Journal lines are on disk before the writer goes on.
"""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from holdfast.observe.events import AnyEvent, Event, StepDone, event_fields, parse_event


class LineFile:
    """Appends JSON lines."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self._sync = sync
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write(self, line: object) -> None:
        os.write(self._fd, msgspec.json.encode(line) + b"\n")
        if self._sync:
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """Sends steps to the metrics and everything else to the journal."""

    def __init__(self, journal: Path, metrics: Path, now: Callable[[], str] = utc_now) -> None:
        self._events, self._steps = LineFile(journal, sync=True), LineFile(metrics)
        self._now = now

    def write(self, event: Event) -> None:
        fields = event_fields(event)
        if isinstance(event, StepDone):
            del fields["event"], fields["reason"]
            self._steps.write({"time": self._now(), **fields})
        else:
            self._events.write({"time": self._now(), **fields})

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
    """The whole lines of a file."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line)


def read_journal(path: Path) -> list[AnyEvent]:
    return [parse_event(msgspec.json.encode(fields)) for fields in read_lines(path)]


def read_metrics(path: Path) -> list[StepDone]:
    return [msgspec.convert({"event": "step_done", **f}, StepDone) for f in read_lines(path)]
