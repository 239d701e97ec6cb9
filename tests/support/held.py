"""What this process holds: open files and threads, each under a name of its own.

Compared by what is new, not by numbers: what an earlier test has left behind on purpose (an
operation that gloo has lost keeps its group for a while) may go away in the middle of a later one.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress


def held() -> frozenset[str]:
    threads = (f"thread {thread.ident}: {thread.name}" for thread in threading.enumerate())
    return frozenset((*threads, *_files()))


def _files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing itself
            yield f"file {number}: {os.readlink(f'/proc/self/fd/{number}')}"


def new_since(before: frozenset[str]) -> list[str]:
    return sorted(held() - before)
