"""Errors of the user's code in a worker: its own lines are shown where the job was started.

A worker that fails logs the whole traceback, most of which is the way from our loop into the user's
modules. What is shown begins where their code does.
"""

import re
import sysconfig
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.errors import is_way_in
from holdfast.observe.callbacks.callback import Callback
from holdfast.observe.events import Event, JobStarted, WorkerLost
from holdfast.observe.log_lines import LOG_SUFFIX, LogLine
from holdfast.observe.run_directory import LOGS

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line \d+', re.M)
_STDLIB = sysconfig.get_paths()["stdlib"]
TAIL_BYTES = 256 * 1024
"""Of a log: where the last error is looked for."""


class WorkerErrors(Callback):
    """Shows each error once, however many workers meet it."""

    def __init__(self, show: Callable[[list[str]], object]) -> None:
        self._show = show
        self._logs: Path | None = None
        self._shown: set[str] = set()

    def on_event(self, event: Event) -> None:
        match event:
            case JobStarted(run_dir=run_dir):
                self._logs = Path(run_dir) / LOGS
            case WorkerLost(worker=worker, kind="error") if self._logs is not None:
                text = user_part(last_error(self._logs / f"{worker}{LOG_SUFFIX}"))
                if text and text not in self._shown:
                    self._shown.add(text)
                    self._show(text.splitlines())


def last_error(log: Path) -> str:
    """The last traceback in a log; empty: there is none."""
    try:
        lines = log.read_bytes()[-TAIL_BYTES:].splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            found = msgspec.json.decode(line, type=LogLine)
        except msgspec.MsgspecError:
            continue
        if found.error:
            return found.error
    return ""


def user_part(text: str) -> str:
    """A traceback from the first frame of the user's code on; empty: there is none of it."""
    for frame in _FRAME.finditer(text):
        if not _is_library(frame["file"]):
            return f"Traceback (most recent call last):\n{text[frame.start() :]}"
    return ""


def _is_library(file: str) -> bool:
    is_installed = "/site-packages/" in file or "/dist-packages/" in file
    is_stdlib = file.startswith((f"{_STDLIB}/", "<frozen")) and not is_installed
    return is_way_in(file) or is_stdlib or "/site-packages/torch/" in file
