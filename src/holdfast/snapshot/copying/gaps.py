"""Gaps as they happen: who tells the copier that the training thread waits.

With a plan, the interpreter tells: it knows what it waits for, and the placement says in which
waits copies may run. Without a plan, waits are found by themselves: every wait for a message or a
collective of torch.distributed passes `Work.wait`, which is wrapped while a copier listens. (Not so
the waits of functional collectives and compiled graphs. What finds no gap is copied before the next
update, and counted.)
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any, Protocol

import torch.distributed as dist

from holdfast.snapshot.copying.copier import Copier
from holdfast.snapshot.placement import SpanKey

LIMIT = 0.01
"""Of the time of a step: what copies may cost in a loop that is not a job."""


class Gaps(Protocol):
    """What the interpreter tells, from the training thread."""

    def waiting(self, key: SpanKey) -> None:
        """The thread is about to block: for a message, or (`AGREE`) for the others."""

    def going_on(self) -> None:
        """It has what it waited for."""

    def forwarded(self) -> None:
        """A forward pass is computed, or queued on the device: the thread is ahead of it."""

    def applying(self) -> None:
        """State is about to change."""

    def applied(self, step: int) -> None:
        """State is the one that enters `step`, and stays so until `applying`."""

    def broken_off(self) -> None:
        """The step is given up; state may be changed by others."""


class Stalls:
    """What copies have cost training: the time it spent finishing them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds = 0.0
        self.num_versions = 0

    @contextmanager
    def measure(self) -> Iterator[None]:
        begin = self._clock()
        yield
        self.seconds += self._clock() - begin

    def finish(self, copier: Copier) -> None:
        """Measured: what this thread waits, and what the device does."""
        with self.measure():
            copier.finish()
        self.seconds += copier.held_s()

    def wanted_interval(self, step_s: float, limit: float = LIMIT) -> int:
        """The shortest interval at which this would have stayed within the limit. All have to
        use the longest that any of them wants.
        """
        each = self.seconds / max(1, self.num_versions)
        return max(1, ceil(each / (limit * step_s))) if step_s > 0 else 1

    def clear(self) -> None:
        self.seconds, self.num_versions = 0.0, 0


class NoGaps:
    """Nothing is copied."""

    def waiting(self, key: SpanKey) -> None:
        pass

    def going_on(self) -> None:
        pass

    def forwarded(self) -> None:
        pass

    def applying(self) -> None:
        pass

    def applied(self, step: int) -> None:
        pass

    def broken_off(self) -> None:
        pass


_lock = threading.Lock()
_original: list[Any] = []
"""`Work.wait` as torch has it, while it is wrapped. There is only one, so this is global."""


class WaitWatch:
    """Calls `enter` when a thread begins to wait in torch.distributed, and `leave` when the last
    one that waits goes on.
    """

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._enter, self._leave = enter, leave
        self._num_waiting = 0

    def start(self) -> None:
        with _lock:
            if not _watching:
                _wrap()
            _watching.append(self)

    def stop(self) -> None:
        with _lock:
            if self in _watching:
                _watching.remove(self)
                if not _watching:
                    dist.Work.wait = _original.pop()  # type: ignore[method-assign]

    def begin(self) -> None:
        with _lock:
            self._num_waiting += 1
        self._enter()

    def end(self) -> None:
        with _lock:
            self._num_waiting -= 1
            is_last = self._num_waiting == 0
        if is_last:
            self._leave()


_watching: list[WaitWatch] = []


def _wrap() -> None:
    original = dist.Work.wait
    _original.append(original)

    def wait(work: Any, *arguments: Any, **options: Any) -> Any:
        watching = list(_watching)
        for watch in watching:
            watch.begin()
        try:
            return original(work, *arguments, **options)
        finally:
            for watch in watching:
                watch.end()

    dist.Work.wait = wait  # type: ignore[method-assign,assignment]
