"""A device that is slow on purpose: for a while, its computations take so many times as long."""

import time
from collections.abc import Callable
from math import inf


class Slowdown:
    """Of one worker's device, emulated or real."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._factor, self._until_s = 1.0, inf

    @property
    def factor(self) -> float:
        """1: it is as fast as ever."""
        is_slow = self._factor > 1.0 and self._clock() < self._until_s
        return self._factor if is_slow else 1.0

    def begin(self, factor: float, seconds: float = inf) -> None:
        """From now on, for so long, also while the device has nothing to do; 1: it ends."""
        self._factor, self._until_s = factor, self._clock() + seconds
