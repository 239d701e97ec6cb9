"""Reading a run while it is written: whatever was added to its journal and metrics since."""

import os
from pathlib import Path

import msgspec

from holdfast.observe.events import Event, StepDone, parse_event


class GrowingFile:
    """The whole lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

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
        return whole.splitlines()


class Follower:
    """Events of a run, each once."""

    def __init__(self, journal: Path, metrics: Path) -> None:
        self._journal, self._metrics = GrowingFile(journal), GrowingFile(metrics)

    def read(self, journal: int | None = None, metrics: int | None = None) -> list[Event]:
        """What is new up to these sizes: of both files, the journal first."""
        found: list[Event] = [parse_event(line) for line in self._journal.read(journal)]
        for line in self._metrics.read(metrics):
            fields = msgspec.json.decode(line)
            found.append(msgspec.convert({"event": "step_done", **fields}, StepDone))
        return found
