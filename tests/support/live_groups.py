"""Live groups inside one process: every worker is a thread with a communicator of its own."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from holdfast.engine.communicator import Communicator
from holdfast.engine.groups import GroupBroken, LiveGroup

_LEAVING_S = 5.0


class LiveMembers:
    """Communicators by worker name, over one store."""

    def __init__(self, workers: Sequence[str], timeout_ms: int) -> None:
        store = dist.HashStore()
        self.communicators = {
            worker: Communicator(
                worker, store, backend="gloo", host="127.0.0.1", timeout_ms=timeout_ms
            )
            for worker in workers
        }

    def together(self, work: Callable[[Communicator], Any], *workers: str) -> dict[str, Any]:
        """`work` on a thread of each worker (of all, by default); what each returned, or the
        GroupBroken it raised.
        """
        return run_together(dict.fromkeys(workers or self.communicators, work), self.communicators)

    def make(self, kind: str, members: Sequence[str], epoch: int = 0) -> dict[str, LiveGroup]:
        made = self.together(lambda communicator: communicator.make(kind, members, epoch), *members)
        for group in made.values():
            assert isinstance(group, LiveGroup), group
        return made


def run_together(
    calls: dict[str, Callable[[Any], Any]], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Each call on its own thread with its own argument; GroupBroken counts as an answer."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = {name: pool.submit(call, arguments[name]) for name, call in calls.items()}
        results: dict[str, Any] = {}
        for name, future in futures.items():
            error = future.exception(timeout=30)
            if error is not None and not isinstance(error, GroupBroken):
                raise error
            results[name] = error or future.result()
        return results


@contextmanager
def live_members(*workers: str, timeout_ms: int = 10_000) -> Iterator[LiveMembers]:
    made = LiveMembers(workers, timeout_ms)
    try:
        yield made
    finally:
        for communicator in made.communicators.values():
            communicator.close_all()


def count_resources(before: tuple[int, int] | None = None) -> tuple[int, int]:
    """(open file descriptors, threads) of this process.

    The kernel still lists a thread for a moment after it was joined. So more threads than there
    were `before` are counted again for a while: one on its way out goes, one left behind stays.
    """
    deadline = time.monotonic() + _LEAVING_S
    while True:
        counts = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        if before is None or counts[1] <= before[1] or time.monotonic() > deadline:
            return counts
        os.sched_yield()
