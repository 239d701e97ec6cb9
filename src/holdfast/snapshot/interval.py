"""How often a snapshot is taken: a limit on what it costs goes in, the interval comes out.

Where all copies fit into bubbles, training never waits for them and every step is kept. Where they
do not, the last of them are awaited before the optimizer step; that wait is what a version costs.
The interval is doubled until the waits are a small enough share of the time between two versions,
and halved again when half of it would do with room to spare: the waits of a few versions are noisy,
and an interval that swings is of no use. Only by factors of two, so that workers that receive a new
interval at different steps still have versions in common.
"""

import statistics
from collections import deque

import msgspec

SEEN_VERSIONS = 8
"""Of every worker, before its waits count."""
ROOM = 0.5
"""Of the limit: the cost at which a shorter interval is tried again."""
LONGEST = 1024


class IntervalChoice(msgspec.Struct, frozen=True):
    every: int
    reason: str


class IntervalRule:
    def __init__(self, least: int, limit: float) -> None:
        """`least` steps between two versions at least; `limit`: of the time of a step."""
        self.every, self._least, self._limit = least, least, limit
        self._steps: deque[float] = deque(maxlen=4 * SEEN_VERSIONS)
        self._waits: dict[str, deque[float]] = {}

    def stepped(self, seconds: float) -> None:
        self._steps.append(seconds)

    def waited(self, worker: str, seconds: float) -> IntervalChoice | None:
        """What a version has cost this worker; the interval to use from now on, if another."""
        waits = self._waits.setdefault(worker, deque(maxlen=SEEN_VERSIONS))
        waits.append(seconds)
        if len(waits) < SEEN_VERSIONS or not self._steps:
            return None
        step_s = statistics.median(self._steps)
        wait_s = statistics.median(waits)
        every = self._fitting(wait_s, step_s)
        if every == self.every or (every < self.every and not self._all_agree(every, step_s)):
            return None
        steps = "step" if every == 1 else f"{every} steps"
        reason = (
            f"a snapshot every {steps}, before it was every {self.every}: {worker} waits "
            f"{1e3 * wait_s:.1f} ms for one and a step takes {1e3 * step_s:.1f} ms, with a limit "
            f"of {self._limit:.1%}"
        )
        self.every, self._waits = every, {}
        return IntervalChoice(every, reason)

    def forget(self) -> None:
        """Another plan: what was seen says nothing any more."""
        self._waits = {}
        self._steps.clear()

    def _fitting(self, wait_s: float, step_s: float) -> int:
        every = self.every
        while wait_s > self._limit * every * step_s and every < LONGEST * self._least:
            every *= 2
        if every > self.every:
            return every
        while every > self._least and wait_s <= ROOM * self._limit * (every // 2) * step_s:
            every //= 2
        return every

    def _all_agree(self, every: int, step_s: float) -> bool:
        """A shorter interval has to do for all workers."""
        return all(
            len(waits) == SEEN_VERSIONS and self._fitting(statistics.median(waits), step_s) <= every
            for waits in self._waits.values()
        )
