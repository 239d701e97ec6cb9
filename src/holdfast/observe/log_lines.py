"""Lines that the processes of a job log: their form, as text and as JSON, and how to follow them.

`runtime/record/logs.py` writes them, one file per process: logs/NAME.jsonl.
"""

from pathlib import Path

import msgspec

from holdfast.observe.follow import GrowingFile

LOG_SUFFIX = ".jsonl"


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    time: str
    """UTC, to the millisecond: 2026-01-31T12:00:00.250Z."""
    level: str
    """info, warning, error or critical"""
    process: str
    """coordinator, agent n0, n0.g1 (a worker), copies n0 or checkpoints n0 (an agent's sidecars)"""
    pid: int
    step: int | None = None
    """Of a worker: the step it is in."""
    module: str
    message: str
    error: str = ""
    """The traceback, where there is one."""


def format_log_line(line: LogLine) -> str:
    """For people: when, how bad, who, at which step, what."""
    step = "" if line.step is None else f" step {line.step}"
    head = f"{line.time[11:23]} {line.level} {line.process}{step}: {line.message}"
    return f"{head}\n{line.error}" if line.error else head


class LogFollower:
    """All lines of a folder of logs, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, GrowingFile] = {}

    def read(self) -> list[LogLine]:
        """The new ones, in the order of their time."""
        for path in self._folder.glob(f"*{LOG_SUFFIX}"):
            self._files.setdefault(path, GrowingFile(path))
        found = [
            msgspec.json.decode(line, type=LogLine)
            for path in sorted(self._files)
            for line in self._files[path].read()
        ]
        return sorted(found, key=lambda line: line.time)
