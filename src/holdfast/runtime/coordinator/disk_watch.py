"""Is the run directory's disk full, and what waits for it? Said once, and once more when it is not.

What is recorded waits in the effect queue, lines and files wait in the run log; both are tried
again until the disk takes them. The launcher is told directly: what it shows otherwise comes from
the very files that cannot be written.
"""

import asyncio
from collections.abc import Callable

from holdfast.observe.events import WritingResumed
from holdfast.runtime.coordinator.effect_queue import LAST_WAIT_MS, RETRY_MS, EffectQueue
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.worker.progress_page import now_ms


class DiskWatch:
    def __init__(
        self, effects: EffectQueue, run_log: RunLog, say_full: Callable[[str], object]
    ) -> None:
        self._effects, self._run_log, self._say_full = effects, run_log, say_full
        self._since_ms: int | None = None
        """Since when the disk takes nothing; None: it does."""
        self._num_waiting = 0

    def due_ms(self, at_ms: int) -> int:
        """When to try again, if that is before `at_ms`."""
        return at_ms if self._since_ms is None else min(at_ms, now_ms() + RETRY_MS)

    def try_again(self) -> None:
        if self._since_ms is not None:
            self._run_log.flush()
            self._effects.carry_out(now_ms())
            self.look()

    def look(self) -> bool:
        """After something was written, or not. Did trouble begin?"""
        trouble = self._effects.trouble or self._run_log.trouble
        self._num_waiting = max(self._num_waiting, self._run_log.num_waiting)
        if trouble and self._since_ms is None:
            self._since_ms = now_ms()
            self._say_full(trouble)
            return True
        if not trouble and self._since_ms is not None:
            seconds, lines = (now_ms() - self._since_ms) / 1000, self._num_waiting
            self._since_ms, self._num_waiting = None, 0
            self._run_log.tell([WritingResumed(seconds=seconds, lines=lines)])
        return False

    async def write_last(self) -> int:
        """At the end: what waits, if there is room in time. How much could not be written."""
        deadline_ms = now_ms() + LAST_WAIT_MS
        self._run_log.flush()
        while self._run_log.num_waiting and now_ms() < deadline_ms:
            await asyncio.sleep(RETRY_MS / 1000)
            self._run_log.flush()
        self.look()
        return self._run_log.num_waiting
