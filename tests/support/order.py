"""(pytest plugin) Tests of real processes come first, the many quick ones fill up the end.

With several test processes (`-n`, `--dist worksteal`) each begins with a part of the tests of real
processes, in their usual order, and goes on with a part of the others; who has done its part takes
from the end of another's. So no long test is left to one of them while the others are idle.

Tests of real processes wait a lot: for starts, for deadlines, for emulated devices. More of them at
once would be late, because their processes need both cores now and then. So of three or more test
processes the last gets quick tests alone, and begins each when a core has nothing to do.
"""

import gc
import os
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

POLL_S = 0.01
LONGEST_WAIT_S = 1.0
"""For an idle core: on a machine that is busy with other things there may be none for hours."""
_FILLS = pytest.StashKey[bool]()


def parts(items: Sequence[T], number: int) -> list[Sequence[T]]:
    """Contiguous, of equal length but for one."""
    bounds = [len(items) * n // number for n in range(number + 1)]
    return [items[low:high] for low, high in pairwise(bounds)]


def deal(real: Sequence[T], quick: Sequence[T], number: int) -> Iterator[T]:
    """All of them, so that parts of equal length are what each test process is to do."""
    sizes = [len(part) for part in parts(range(len(real) + len(quick)), number)]
    dealt = parts(real, number) if number < 3 else [*parts(real, number - 1), ()]
    rest = iter(quick)
    for size, first in zip(sizes, dealt, strict=True):
        yield from first
        yield from islice(rest, max(0, size - len(first)))
    yield from rest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is None:  # one process: as written
        return
    real = [item for item in items if item.get_closest_marker("process") is not None]
    quick = [item for item in items if item.get_closest_marker("process") is None]
    number = worker["workercount"]
    items[:] = deal(real, quick, number)
    is_last = worker["workerid"] == f"gw{number - 1}"
    config.stash[_FILLS] = number > 2 and is_last and bool(real)


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays, and need not be looked at again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the time limit of the test begins
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    if item.config.stash.get(_FILLS, False):
        end = time.monotonic() + LONGEST_WAIT_S
        while not has_idle_core(Path("/proc/loadavg")) and time.monotonic() < end:
            time.sleep(POLL_S)
    return (yield)


def has_idle_core(loadavg: Path) -> bool:
    """Right now; who asks is one of those that run."""
    num_running = int(loadavg.read_text().split()[3].partition("/")[0])
    return num_running <= len(os.sched_getaffinity(0))
