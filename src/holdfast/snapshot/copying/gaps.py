"""Gaps as they happen: who tells the copier that the training thread waits.

With a plan, the interpreter tells: it knows what it waits for, and the placement says in which
waits copies may run. Without a plan, waits are found by themselves: every wait for a message or a
collective of torch.distributed passes `Work.wait`, which is wrapped while a copier listens. (Not so
the waits of functional collectives and compiled graphs. What finds no gap is copied before the next
update, and counted.)
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from holdfast.plan.timeline import Timeline
from holdfast.snapshot.chunks import cut_chunks
from holdfast.snapshot.copying.copier import DEEP, HOST_CHUNK_BYTES, SHALLOW, Copier
from holdfast.snapshot.layout import ArenaLayout
from holdfast.snapshot.memory.arena import Version
from holdfast.snapshot.placement import LIMIT, CopyCosts, Placement, SpanKey, place


class Gaps(Protocol):
    """What the interpreter tells, from the training thread."""

    def waiting(self, key: SpanKey) -> None:
        """The thread is about to block: for a message, or (`AGREE`) for the others."""

    def going_on(self) -> None:
        """It has what it waited for."""

    def sending(self) -> None:
        """A message is about to take the bus from the device to the host."""

    def sent(self) -> None:
        """It has left the device."""

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

    def sending(self) -> None:
        pass

    def sent(self) -> None:
        pass

    def forwarded(self) -> None:
        pass

    def applying(self) -> None:
        pass

    def applied(self, step: int) -> None:
        pass

    def broken_off(self) -> None:
        pass


class PlacedCopies:
    """Copies in the gaps that a placement has chosen; and where it has put chunks beside
    computations, everywhere but in the way of messages.
    """

    def __init__(
        self,
        copier: Copier,
        placement: Placement,
        sources: Mapping[str, Tensor],
        *,
        agreed_in: int = 0,
    ) -> None:
        self.copier, self._sources, self._agreed_in = copier, sources, agreed_in
        self.stalls = Stalls()
        self.place(placement)

    def place(self, placement: Placement) -> None:
        """Use another placement from the next version on. All workers must do so at one step, since
        all have to copy the same versions.
        """
        self.placement = placement
        self._waits = frozenset(placement.waits)
        self._is_beside = bool(placement.beside)
        # Without waits there are no messages either that a long queue could hold up.
        self._ahead = SHALLOW if placement.waits else DEEP

    def waiting(self, key: SpanKey) -> None:
        if key in self._waits:
            self.copier.open()

    def going_on(self) -> None:
        if not self._is_beside:
            self.copier.close()

    def sending(self) -> None:
        self.copier.close()

    def sent(self) -> None:
        if self._is_beside:
            self.copier.open(ahead=self._ahead)

    def forwarded(self) -> None:
        pass

    def applying(self) -> None:
        self.stalls.finish(self.copier)

    def applied(self, step: int) -> None:
        if step % self.placement.interval == 0:
            self.stalls.num_versions += 1
            self.copier.begin(
                Version(step, self._agreed_in),
                self._sources,
                num_staged=len(self.placement.staged),
            )
            if self._is_beside:
                self.copier.open(ahead=self._ahead)

    def broken_off(self) -> None:
        self.copier.abandon()


def place_workers(
    timeline: Timeline,
    layouts: Iterable[ArenaLayout],
    costs: CopyCosts,
    *,
    chunk_bytes: int = HOST_CHUNK_BYTES,
    limit: float = LIMIT,
) -> dict[str, Placement]:
    """The placement of every worker of a plan, at one interval. Pure: where all have the same
    timeline and costs, all find the same, so nothing has to be asked. To be called again when the
    plan or the measured costs have changed.
    """
    lanes = timeline.layout.lane_of_worker
    sizes = {
        layout.worker: tuple(chunk.num_bytes for chunk in cut_chunks(layout, chunk_bytes))
        for layout in layouts
    }
    alone = {
        worker: place(timeline, lanes[worker], found, costs, limit=limit)
        for worker, found in sizes.items()
    }
    interval = max((placement.interval for placement in alone.values()), default=1)
    return {
        worker: found
        if found.interval == interval
        else place(
            timeline, lanes[worker], sizes[worker], costs, limit=limit, least_interval=interval
        )
        for worker, found in alone.items()
    }


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
