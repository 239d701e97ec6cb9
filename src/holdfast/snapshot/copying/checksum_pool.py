"""Threads that take checksums of what has arrived from a device: as few as keep up with it.

A device delivers 55 GB/s, one thread checks about 10. With threads enough for that rate, memory and
processors are taken from whatever carries the messages of the workers, for a short time in every
step: two stages on an H200 became 1.1 % slower with six threads each, and not measurably with one.
Nothing waits for a checksum before the next version begins, so there is a whole interval for them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import ceil

from holdfast.snapshot.copying.priority import lower_thread

MOST = 6
USABLE = 0.75
"""Of the time between two versions; the rest is a reserve."""
_RECENT = 8
"""Versions; the shortest time between two of them counts, since training may pause."""


def threads_needed(num_bytes: int, rate: float, interval_s: float) -> int:
    """`rate`: bytes per second of one thread; as many as there are where something is unknown."""
    if rate <= 0 or interval_s <= 0:
        return MOST
    return min(MOST, max(1, ceil(num_bytes / (rate * USABLE * interval_s))))


class ChecksumPool:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(MOST, "checksums", initializer=lower_thread)
        self._turn = threading.Condition()
        """Only of the pool's own threads: they have idle priority, and training must not wait for
        one that holds it.
        """
        self._num_running = 0
        self._begun_at = 0.0
        self._intervals_s: deque[float] = deque(maxlen=_RECENT)
        self._checked_bytes, self._busy_s = 0, 0.0
        self.limit = MOST
        """Threads at work at once."""

    def begin(self, num_bytes: int) -> None:
        """Another version of so many bytes begins."""
        now, before = self._clock(), self._begun_at
        if before:
            self._intervals_s.append(now - before)
        self._begun_at = now
        rate = self._checked_bytes / self._busy_s if self._busy_s > 0 else 0.0
        self.limit = threads_needed(num_bytes, rate, min(self._intervals_s, default=0.0))

    def submit(self, num_bytes: int, check: Callable[[], object]) -> Future[None]:
        return self._threads.submit(self._check, num_bytes, check)

    def _check(self, num_bytes: int, check: Callable[[], object]) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._num_running < self.limit)
            self._num_running += 1
        start = self._clock()
        try:
            check()
        finally:
            with self._turn:
                self._num_running -= 1
                self._checked_bytes += num_bytes
                self._busy_s += self._clock() - start
                self._turn.notify_all()

    def close(self) -> None:
        self._threads.shutdown()
