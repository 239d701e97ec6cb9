"""Writes down when a worker's actions begin, beside the training.

It stands between the interpreter and what else wants to know where the worker is (`progress`) and
when it waits (`gaps`). The training thread only appends numbers to a list; at the end of a step the
list is handed to a thread that packs and writes it. If the disk cannot keep up, steps are left out.
A file is bounded: at half its limit it becomes the older one, and another one is begun.
"""

import os
import threading
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from queue import Full, Queue

import msgspec
import torch

from holdfast.engine.epoch import LiveEpoch
from holdfast.engine.interpreter import Interpreter
from holdfast.engine.step_times import peak_bytes
from holdfast.observe.action_times import (
    APPLIED,
    APPLIES,
    BREAKS,
    COPIES,
    GOES_ON,
    WAITS,
    ActionList,
    ActionMarks,
)
from holdfast.observe.append import append_whole
from holdfast.plan.actions import format_line
from holdfast.snapshot.copying.gaps import Gaps, NoGaps
from holdfast.snapshot.placement import SpanKey

MAX_WAITING = 64
"""Steps that are not written yet; more are left out."""
CLOSE_S = 2.0

Line = ActionList | ActionMarks


class BoundedLines:
    """Lines of JSON in two files of at most half of the limit each."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path, self._half = path, max(1, limit_bytes // 2)
        path.parent.mkdir(exist_ok=True)
        self._fd = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, line: Line, heading: Line | None) -> None:
        """`heading` is what every file begins with."""
        data = msgspec.json.encode(line) + b"\n"
        size = os.fstat(self._fd).st_size
        if size and size + len(data) > self._half:
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
            os.close(self._fd)
            self._fd = self._open()
            if heading is not None:
                append_whole(self._fd, msgspec.json.encode(heading) + b"\n")
        append_whole(self._fd, data)  # a full disk costs lines, nothing else

    def close(self) -> None:
        os.close(self._fd)


class LineWriter:
    """Writes on a thread of its own."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._lines = BoundedLines(path, limit_bytes)
        self._queue: Queue[Line | None] = Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, daemon=True, name="action times")
        self._thread.start()

    def put(self, line: Line | None) -> bool:
        """Never waits; False: it is left out."""
        try:
            self._queue.put_nowait(line)
        except Full:
            return False
        return True

    def _run(self) -> None:
        heading: Line | None = None
        while (line := self._queue.get()) is not None:
            self._lines.write(line, heading)
            if isinstance(line, ActionList):
                heading = line
        self._lines.close()

    def close(self) -> None:
        """What waits is written, unless the disk takes too long."""
        if self.put(None):
            self._thread.join(CLOSE_S)


class ActionRecorder:
    """Called from the training thread alone."""

    def __init__(
        self,
        path: Path,
        incarnation: int,
        *,
        every: int,
        limit_bytes: int,
        device: torch.device,
        progress: Callable[[int, int], object],
        epoch: Callable[[], LiveEpoch],
    ) -> None:
        """`progress` is told everything first; `epoch` says which one is under way."""
        self._writer = LineWriter(path, limit_bytes)
        self._incarnation, self._every, self._device = incarnation, every, device
        self._told, self._epoch = progress, epoch
        self.gaps: Gaps = NoGaps()
        """Are told everything, too."""
        self.copies_until_s: Callable[[], float] = lambda: 0.0
        """When the last snapshot was copied, by `time.perf_counter`; inf: one is under way."""
        self._copies_since = 0
        """When a wait began in which copies go on, in nanoseconds; 0: there is none."""
        self._marks: list[int] | None = None
        """Code, nanoseconds, code, nanoseconds ...; None: this step is not recorded."""
        self._reductions: list[tuple[int, int, int]] = []
        self._step, self._number, self._unix_ns = -1, -1, 0
        self._listed: Interpreter | None = None

    def progress(self, step: int, number: int) -> None:
        """An action begins."""
        self._told(step, number)
        if number == 0:
            self._begin(step)
        if self._marks is not None:
            self._marks += (number, time.perf_counter_ns())

    def reduced(self, unit: int, started_s: float) -> None:
        if self._marks is not None:
            self._reductions.append((unit, round(started_s * 1e9), time.perf_counter_ns()))

    def _mark(self, code: int) -> None:
        if self._marks is not None:
            self._marks += (code, time.perf_counter_ns())

    def _begin(self, step: int) -> None:
        self._hand_over()
        if step % self._every:
            return
        epoch = self._epoch()
        interpreter = epoch.interpreter
        if interpreter is None:
            return
        if interpreter is not self._listed:
            listed = ActionList(
                epoch=epoch.number,
                completes=interpreter.is_completing,
                actions=format_line(interpreter.actions),
            )
            if not self._writer.put(listed):
                return
            self._listed = interpreter
        self._step, self._number, self._marks = step, epoch.number, []
        self._unix_ns = time.time_ns()

    def _hand_over(self) -> None:
        """The step that was recorded is over."""
        marks, self._marks = self._marks, None
        reductions, self._reductions = self._reductions, []
        if not marks:
            return
        zero = marks[1]
        times = [value if at % 2 == 0 else (value - zero) // 1000 for at, value in enumerate(marks)]
        self._writer.put(
            ActionMarks(
                step=self._step,
                epoch=self._number,
                incarnation=self._incarnation,
                unix_us=self._unix_ns // 1000,
                marks=tuple(times),
                reductions=tuple(
                    (unit, (start - zero) // 1000, (end - zero) // 1000)
                    for unit, start, end in reductions
                ),
                peak_bytes=peak_bytes(self._device),
            )
        )

    def close(self) -> None:
        self._hand_over()
        self._writer.close()

    # Gaps: passed on.

    def waiting(self, key: SpanKey) -> None:
        self.gaps.waiting(key)
        copies = self.copies_until_s() == inf
        self._mark(COPIES if copies else WAITS)
        self._copies_since = self._marks[-1] if copies and self._marks else 0

    def going_on(self) -> None:
        until_s = self.copies_until_s() if self._copies_since else inf
        if until_s != inf and self._marks is not None:
            self._marks += (WAITS, max(self._copies_since, round(until_s * 1e9)))
        self._copies_since = 0
        self._mark(GOES_ON)
        self.gaps.going_on()

    def forwarded(self) -> None:
        self.gaps.forwarded()

    def applying(self) -> None:
        copies = self.copies_until_s() == inf
        if copies:
            self._mark(APPLIES)
        self.gaps.applying()
        if copies:
            self._mark(GOES_ON)

    def applied(self, step: int) -> None:
        self.gaps.applied(step)
        self._mark(APPLIED)
        self._hand_over()

    def broken_off(self) -> None:
        self._mark(BREAKS)
        self._hand_over()
        self.gaps.broken_off()
