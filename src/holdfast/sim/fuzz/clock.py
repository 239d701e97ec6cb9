"""Virtual time: events in order of their time, and of their making where that is equal.

While the whole world is suspended nothing happens in it, so no event comes later by that. Only the
clocks that its processes read have gone on.

Every event goes into a short trace and a running digest, so that two runs can be compared without
keeping either.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

TRACE = 80


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0
        self.suspended_ms = 0
        """For how long the world was, until now."""
        self.num_events = 0
        self.digest = 0
        self.trace: deque[str] = deque(maxlen=TRACE)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0

    @property
    def process_ms(self) -> int:
        """What a process reads."""
        return self.now_ms + self.suspended_ms

    def at(self, time_ms: int, action: Callable[..., None], *arguments: Any) -> None:
        self._made += 1
        heappush(self._heap, (max(time_ms, self.now_ms), self._made, action, arguments))

    def after(self, delay_ms: int, action: Callable[..., None], *arguments: Any) -> None:
        self._made += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._made, action, arguments))

    def step(self) -> bool:
        """Let the next event happen; False: there is none."""
        if not self._heap:
            return False
        self.now_ms, _, action, arguments = heappop(self._heap)
        self.num_events += 1
        action(*arguments)
        return True

    def note(self, text: str) -> None:
        line = f"{self.now_ms} {text}"
        self.trace.append(line)
        self.digest = crc32(line.encode(), self.digest)
