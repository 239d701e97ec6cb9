"""Many seeds on several processes. What comes out does not depend on how many."""

import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process

import msgspec

from holdfast.sim.fuzz.run import Broken, FuzzRun, run_seed

CHUNK = 8
COLLECT_EVERY = 100_000
"""Objects between two collections of garbage: a world lives for milliseconds and goes whole."""


class Total(msgspec.Struct, frozen=True):
    num_runs: int
    num_events: int
    digest: int
    """Of all runs, in order of their seeds."""
    coverage: dict[str, int]
    broken: tuple[Broken, ...]


def run_seeds(seeds: Sequence[int], num_processes: int = 1) -> Iterator[FuzzRun]:
    """In order of the seeds, as they are done. Given up early, it ends its processes."""
    if num_processes == 1 or len(seeds) <= CHUNK:
        yield from map(run_seed, seeds)
        return
    pool = ProcessPoolExecutor(
        num_processes, mp_context=get_context("spawn"), initializer=_begin_process
    )
    try:
        yield from pool.map(run_seed, seeds, chunksize=CHUNK)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_process() -> None:
    """An interrupt from the terminal is for the process that gives out the seeds; if that is
    killed, this one ends with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def add_up(runs: Iterable[FuzzRun]) -> Total:
    """What was done before an interrupt counts, too."""
    coverage: Counter[str] = Counter()
    broken: list[Broken] = []
    count = events = digest = 0
    for run in runs:
        count += 1
        events += run.num_events
        digest = (digest * 1_000_003 + run.digest) % 2**64
        coverage.update(run.coverage)
        if run.broken is not None:
            broken.append(run.broken)
    found = {name: number for name, number in sorted(coverage.items()) if number}
    return Total(count, events, digest, found, tuple(broken))
