"""(pytest plugin) Tests of real processes come first, the many quick ones fill up the end.

With several test processes (`-n`, `--dist worksteal`) each begins with a part of the tests of real
processes, in their usual order, and goes on with a part of the others; who has done its part takes
from the end of another's. So no long test is left to one of them while the others are idle.
"""

import gc
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import pytest

T = TypeVar("T")


def parts(items: Sequence[T], number: int) -> list[Sequence[T]]:
    """Contiguous, of equal length but for one."""
    bounds = [len(items) * n // number for n in range(number + 1)]
    return [items[low:high] for low, high in pairwise(bounds)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is None:  # one process: as written
        return
    real = [item for item in items if item.get_closest_marker("process") is not None]
    quick = [item for item in items if item.get_closest_marker("process") is None]
    number = worker["workercount"]
    dealt = zip(parts(real, number), parts(quick, number), strict=True)
    items[:] = [item for first, then in dealt for item in (*first, *then)]


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays, and need not be looked at again and again."""
    gc.collect()
    gc.freeze()
