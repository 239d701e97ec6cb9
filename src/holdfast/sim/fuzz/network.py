"""A connection between an agent and the coordinator: in order, as slow as it likes, and lost whole.

What is under way when a connection ends never arrives, on either side.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.sim.fuzz.clock import Clock

Receiver = Callable[[Any], None]


class SimulatedConnection:
    def __init__(self, clock: Clock, rng: Random, slowest_ms: int) -> None:
        self._clock, self._rng, self._slowest_ms = clock, rng, slowest_ms
        self.is_open = True
        self._arrives = [0, 0]

    def send(self, side: int, receiver: Receiver, message: Any) -> None:
        if not self.is_open:
            return
        delay = self._rng.randint(0, self._slowest_ms)
        if self._rng.random() < 0.05:
            delay *= 10
        arrival = max(self._arrives[side], self._clock.now_ms + delay)
        self._arrives[side] = arrival
        self._clock.at(arrival, self._deliver, receiver, message)

    def _deliver(self, receiver: Receiver, message: Any) -> None:
        if self.is_open:
            receiver(message)

    def close(self) -> None:
        self.is_open = False
