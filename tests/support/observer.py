"""A job as an observer outside sees it: what was killed, which steps were reported when."""

import random
import signal
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.observe.events import (
    Event,
    JobEnded,
    JobStarted,
    PlanChanged,
    Recovered,
    Restored,
    StepDone,
    WorkersReady,
)
from holdfast.runtime.launch.fork_server import ForkServer
from support.outside import processes, send
from support.time_check import STAMP_S

WINDOW = 48
"""Undisturbed steps that say how long a step takes usually."""


@dataclass
class Observer:
    """(OnEvent) Notes every step with the time at which it came, and kills now and then."""

    fork_server: ForkServer
    source: random.Random
    every_steps: int
    num_kills: int
    may_kill: tuple[str, ...]
    """worker, node, coordinator"""
    began_s: float = 0.0
    """By the time of day, like all that follow."""
    ended_s: float = 0.0
    steps: list[tuple[float, int]] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    """Of each, whether all workers took part."""
    kills: Counter[str] = field(default_factory=Counter)
    killed: list[tuple[str, str, int]] = field(default_factory=list)
    """Kind, name and process of each."""
    struck_after: list[int] = field(default_factory=list)
    """The steps after which something was killed."""
    _num_workers: int = 0
    _num_present: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        now = time.time()
        match event:
            case JobStarted():
                self.began_s = now
            case JobEnded():
                self.ended_s = now
            case WorkersReady(pids=pids):
                self._num_workers = self._num_present = len(pids)
            case Recovered() | PlanChanged() | Restored():
                self._num_present = event.num_workers
            case StepDone(step=step):
                self.steps.append((now, step))
                self.whole.append(self._num_present == self._num_workers)
                if len(self.steps) % self.every_steps == 0 and len(self._threads) < self.num_kills:
                    thread = threading.Thread(target=self._kill, daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def _kill(self) -> None:
        time.sleep(self.source.uniform(0, 0.1))
        kind = self.source.choice(self.may_kill)
        found = processes(self.fork_server)
        match kind:
            case "worker":
                names = sorted(name for name in found if name[0] == "n")
            case "node":
                # The first one stays, with a replica of everything.
                names = sorted(name for name in found if name.startswith("agent-"))[1:]
            case _:
                names = ["coordinator"] if "coordinator" in found else []
        if names:
            name = self.source.choice(names)
            if send(found[name], signal.SIGKILL):
                self.kills[kind] += 1
                self.struck_after.append(self.steps[-1][1])
                self.killed.append((kind, name, found[name]))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    # What was seen.

    @property
    def num_again(self) -> int:
        """Steps that came more than once."""
        return len(self.steps) - len({step for _, step in self.steps})

    def correct(self, stamps: list[tuple[float, int]]) -> float:
        """Steps were heard of late, on a busy machine by more than a stall. So take the times that
        were written down with them, which lie before; by how much, at most, is returned.
        """
        assert [step for _, step in stamps] == [step for _, step in self.steps]
        lags = [heard - at for (heard, _), (at, _) in zip(self.steps, stamps, strict=True)]
        assert min(lags) >= -STAMP_S, "a step was written down with a time that was yet to come"
        self.steps = stamps
        return max(lags)

    def stall_range_s(self, began_s: float, at_s: float, over_step: int) -> tuple[float, float]:
        """How much later than usual this step ended (the last time, if it was done again), from the
        last one that had ended so many seconds after the start. Usual is what undisturbed steps
        took before, between their quartiles: on a busy machine no median of them is the one.
        """
        first = max(i for i, (at, _) in enumerate(self.steps) if at - began_s <= at_s)
        last = max(i for i, (_, number) in enumerate(self.steps) if number == over_step)
        short_s, _, long_s = statistics.quantiles(self._calm_gaps(first)[-WINDOW:], n=4)
        span_s = self.steps[last][0] - self.steps[first][0]
        least_s, most_s = (span_s - (last - first) * usual_s for usual_s in (long_s, short_s))
        return max(0.0, least_s), max(0.0, most_s)

    def _calm_gaps(self, until: int) -> list[float]:
        """Times of steps before, with all workers there and nothing killed right before."""
        pairs = zip(pairwise(self.steps[: until + 1]), self.whole[1:], strict=False)
        return [
            b - a
            for ((a, after), (b, _)), whole in pairs
            if whole and all(not 0 <= after - at <= 1 for at in self.struck_after)
        ]
