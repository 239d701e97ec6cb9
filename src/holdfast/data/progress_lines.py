"""The progress of a preparation as lines for people: at its beginning, and now and then."""

import time
from collections.abc import Callable

from holdfast.data.preparation import PrepareProgress

_EVERY_S = 10.0


class ProgressLines:
    """(OnProgress)"""

    def __init__(
        self, show: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show, self._clock = show, clock
        self._name, self._begun_s, self._said_s = "", 0.0, 0.0
        self._first_bytes = 0

    def __call__(self, progress: PrepareProgress) -> None:
        now_s = self._clock()
        is_new = progress.name != self._name
        if is_new:
            self._name, self._begun_s = progress.name, now_s
            self._first_bytes = progress.done_bytes
        is_done = 0 < progress.total_bytes == progress.done_bytes
        if is_new or is_done or now_s - self._said_s >= _EVERY_S:
            self._said_s = now_s
            self._show(self._line(progress, now_s - self._begun_s))

    def _line(self, progress: PrepareProgress, spent_s: float) -> str:
        if progress.waits_for:
            return f"{progress.name}: process {progress.waits_for} prepares it, waiting for that"
        share = progress.done_bytes / max(1, progress.total_bytes)
        line = f"preparing {progress.name}: {share:.0%}, {progress.num_tokens:,} tokens"
        since = progress.done_bytes - self._first_bytes
        if since and progress.done_bytes < progress.total_bytes:
            left_s = spent_s / since * (progress.total_bytes - progress.done_bytes)
            line += f", {left_s:.0f} s left"
        return line
