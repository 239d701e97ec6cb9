"""A job as an observer outside sees it: what was killed, which steps were reported when."""

import random
import signal
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.observe.events import Event, JobEnded, JobStarted, StepDone
from holdfast.runtime.launch.fork_server import ForkServer
from support.outside import processes, send

WINDOW = 31
TICK_S = 0.005


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
    ended_s: float = 0.0
    steps: list[tuple[float, int]] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    killed: list[tuple[str, str, int]] = field(default_factory=list)
    """Kind, name and process of each."""
    struck_after: list[int] = field(default_factory=list)
    """The steps after which something was killed."""
    _threads: list[threading.Thread] = field(default_factory=list)
    _late: list[tuple[float, float]] = field(default_factory=list)
    """When this process was woken, and how much later than it asked for."""

    def __post_init__(self) -> None:
        threading.Thread(target=self._watch_clock, daemon=True).start()

    def _watch_clock(self) -> None:
        """A machine that is busy lets observers wait, too."""
        while not self.ended_s:
            asked = time.time() + TICK_S
            time.sleep(TICK_S)
            now = time.time()
            self._late.append((now, now - asked))

    def late_s(self, at_s: float, over_step: int) -> float:
        """How late the observer itself may have been between these moments."""
        until = max(at for at, number in self.steps if number == over_step)
        late = [lag for at, lag in self._late if self.began_s + at_s - 1 <= at <= until + 1]
        return max(late, default=0.0)

    def __call__(self, event: Event) -> None:
        now = time.time()
        match event:
            case JobStarted():
                self.began_s = now
            case JobEnded():
                self.ended_s = now
            case StepDone(step=step):
                self.steps.append((now, step))
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
    def wall_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def num_again(self) -> int:
        """Steps that came more than once."""
        return len(self.steps) - len({step for _, step in self.steps})

    def stall_s(self, at_s: float, over_step: int) -> float:
        """How much later than usual this step ended (the last time, if it was done again), from the
        last one that had ended so many seconds after the start. Usual is the median of the
        undisturbed steps before.
        """
        first = max(i for i, (at, _) in enumerate(self.steps) if at - self.began_s <= at_s)
        last = max(i for i, (_, number) in enumerate(self.steps) if number == over_step)
        gaps = [b - a for (a, _), (b, _) in pairwise(self.steps[: first + 1])]
        before = zip(gaps, self.steps, strict=False)
        calm = [gap for gap, (_, after) in before if self._is_calm(after)]
        usual_s = statistics.median(calm[-WINDOW:])
        return max(0.0, self.steps[last][0] - self.steps[first][0] - (last - first) * usual_s)

    def _is_calm(self, step: int) -> bool:
        """Nothing was killed right after this step."""
        return all(not 0 <= step - at <= 1 for at in self.struck_after)
