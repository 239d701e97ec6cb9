"""The logs of a job's processes: text for people, JSON lines for programs.

A module logs with `logging.getLogger(__name__)` and knows nothing of this one. The fork server
calls `start_logging` in every child, so that each process has two files:

    logs/n0.g1.log      everything the process printed, and its log lines as text
    logs/n0.g1.jsonl    its log lines alone, one JSON object each

A line is written at once, each file with one system call, so nothing that was logged is lost when
the process is killed. Training logs nothing per step, and the step of a line is looked up only
when a line is written; so a step costs nothing.
"""

import io
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.observe.append import append_whole
from holdfast.observe.log_lines import LOG_SUFFIX, LogLine, format_log_line

_STDERR = 2
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def open_log(path: Path) -> int:
    """A descriptor that adds to the file; a successor of the same name goes on in it."""
    return os.open(path, _APPEND, 0o644)


class ProcessLog(logging.Handler):
    """Writes every record of this process to two descriptors, as text and as JSON."""

    def __init__(self, process: str, text_fd: int, json_fd: int) -> None:
        super().__init__()
        self._process, self._text_fd, self._json_fd = process, text_fd, json_fd
        self.read_step: Callable[[], int] = lambda: -1
        """The step that the process is in; -1: none."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
            os.write(self._text_fd, f"{format_log_line(line)}\n".encode(errors="replace"))
            append_whole(self._json_fd, msgspec.json.encode(line) + b"\n")
        except Exception:  # a full disk, say: logging must not end what it describes
            self.handleError(record)

    def _line(self, record: logging.LogRecord) -> LogLine:
        step = self.read_step()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        trace = record.exc_info
        return LogLine(
            time=f"{stamp}.{int(record.msecs):03d}Z",
            level=record.levelname.lower(),
            process=self._process,
            pid=os.getpid(),
            step=step if step >= 0 else None,
            module=record.name.removeprefix("holdfast."),
            message=" ".join(record.getMessage().split("\n")),
            error=logging.Formatter().formatException(trace) if trace and trace[0] else "",
        )


class PatientStream(io.TextIOBase):
    """Standard output of a process whose disk may be full: what does not fit is lost, and the
    process goes on.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        with suppress(OSError):
            os.write(self._fd, text.encode(errors="replace"))
        return len(text)


def start_logging(log: Path, text_fd: int = _STDERR) -> None:
    """From now on records of this process go to `text_fd`, which is `log`, and to the JSON file
    beside it; by default that is its standard error. Ours are taken from info on, those of
    libraries from warning on.
    """
    logging.raiseExceptions = False
    sys.stdout, sys.stderr = PatientStream(1), PatientStream(_STDERR)
    process = log.stem.replace("-", " ", 1)
    handler = ProcessLog(process, text_fd, open_log(log.with_suffix(LOG_SUFFIX)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)


def add_step(read_step: Callable[[], int]) -> None:
    """From now on lines of this process carry the step it is in."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, ProcessLog):
            handler.read_step = read_step
