"""Reading a run while it is written: whatever was added to its journal and metrics since."""

import os
from datetime import datetime
from pathlib import Path

import msgspec

from holdfast.observe.events import Event, StepDone, parse_event
from holdfast.observe.run_directory import JOURNAL, METRICS


def is_whole(line: bytes) -> bool:
    """Of a line that was torn by a full disk or a crash, another one may follow."""
    return line.startswith(b"{") and line.endswith(b"}") and _is_json(line)


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


class GrowingFile:
    """The whole lines of a file that grows."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def moved(self, path: Path) -> "GrowingFile":
        """The same file, under another name since."""
        return GrowingFile(path, self._offset)

    def read(self, size: int | None = None) -> list[bytes]:
        """New lines, up to this size of the file."""
        try:
            with self._path.open("rb") as file:
                end = os.fstat(file.fileno()).st_size if size is None else size
                file.seek(self._offset)
                data = file.read(max(0, end - self._offset))
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for line in whole.splitlines() if is_whole(line)]


class Follower:
    """Events of a run, each once."""

    def __init__(self, journal: Path, metrics: Path, sizes: tuple[int, int] = (0, 0)) -> None:
        """`sizes`: what was there before is left out."""
        self._journal = GrowingFile(journal, sizes[0])
        self._metrics = GrowingFile(metrics, sizes[1])

    def read(self, journal: int | None = None, metrics: int | None = None) -> list[Event]:
        """What is new up to these sizes: of both files, the journal first."""
        found: list[Event] = [parse_event(line) for line in self._journal.read(journal)]
        for line in self._metrics.read(metrics):
            fields = msgspec.json.decode(line)
            found.append(msgspec.convert({"event": "step_done", **fields}, StepDone))
        return found


def last_time_s(run_dir: Path) -> float:
    """Of the last lines in a run directory; 0 where there are none."""
    paths = (run_dir / JOURNAL, run_dir / METRICS)
    last = [lines[-1] for path in paths if (lines := GrowingFile(path).read())]
    return max((_TIME.decode(line).time.timestamp() for line in last), default=0.0)


TimedEvent = tuple[float, Event]
"""When it was written down, in seconds since 1970, and the event."""


class _JournalTime(msgspec.Struct):
    time: datetime


class _StepLine(StepDone, frozen=True, kw_only=True, tag=None, tag_field=None):
    time: datetime | None = None


_TIME = msgspec.json.Decoder(_JournalTime)
_STEP = msgspec.json.Decoder(_StepLine)


class RunReader:
    """The events of a run with their times, in the order of time, each once.

    Two files are read while another process writes them. The journal is read before the metrics and
    again after them: an event of the second reading may be older than steps that have not been read
    yet, so it waits for the next time unless a step was read that is newer.
    """

    def __init__(self, run_dir: Path) -> None:
        self._journal, self._metrics = (
            GrowingFile(run_dir / JOURNAL),
            GrowingFile(run_dir / METRICS),
        )
        self._held: list[TimedEvent] = []
        self._last_s = 0.0

    def read(self) -> list[TimedEvent]:
        events = self._held + self._events()
        steps = self._steps()
        self._held = self._events()
        newest_s = steps[-1][0] if steps else 0.0
        events += [timed for timed in self._held if timed[0] <= newest_s]
        self._held = [timed for timed in self._held if timed[0] > newest_s]
        return sorted(events + steps, key=lambda timed: timed[0])

    def _events(self) -> list[TimedEvent]:
        lines = self._journal.read()
        return [(_TIME.decode(line).time.timestamp(), parse_event(line)) for line in lines]

    def _steps(self) -> list[TimedEvent]:
        found: list[TimedEvent] = []
        for line in self._metrics.read():
            step = _STEP.decode(line)
            # Runs of older versions have no times here.
            at_s = step.time.timestamp() if step.time else self._last_s + step.step_time_s
            self._last_s = at_s
            found.append((at_s, step))
        return found
