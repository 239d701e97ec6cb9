"""The progress page: where a worker is, readable without asking it.

A page of shared memory that the agent makes and the worker gets at its fork. The main thread of the
worker writes its step and action there, and another thread counts up a beat; so the agent knows
where a worker hangs, and whether it hangs altogether, without a message and without its help. A
store of one number costs a training step nothing.

Each number is eight aligned bytes, written at once. Step and action share one of them, so they
always belong together; the time of entry is believed only if that number stood still meanwhile.
"""

import mmap
import os
import threading
import time

import msgspec

PAGE_BYTES = 4096
BEAT_S = 0.05
_PLACE, _SINCE, _BEATS = 0, 1, 2
_ACTION_BITS = 24
NOWHERE = -1


class Progress(msgspec.Struct, frozen=True):
    step: int
    """-1: it has begun none."""
    action: int
    """Position in the worker's list of actions."""
    since_ms: int
    """When it got there, by the machine's monotonic clock."""
    beats: int


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def make_page_file() -> int:
    """A descriptor of shared memory that has no name and goes with its last user."""
    fd = os.memfd_create("holdfast-progress", os.MFD_CLOEXEC)
    os.ftruncate(fd, PAGE_BYTES)
    return fd


class ProgressPage:
    """Both ends; the descriptor may be closed afterwards."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, PAGE_BYTES)
        self._view = memoryview(self._memory).cast("q")

    def enter(self, step: int, action: int) -> None:
        """The worker's main thread begins an action."""
        view = self._view
        view[_SINCE] = now_ms()
        view[_PLACE] = ((step + 1) << _ACTION_BITS) | action

    def beat(self) -> None:
        self._view[_BEATS] += 1

    def read(self) -> Progress:
        view = self._view
        while True:
            place, since = view[_PLACE], view[_SINCE]
            if view[_PLACE] == place:
                break
        action = place & ((1 << _ACTION_BITS) - 1)
        return Progress((place >> _ACTION_BITS) + NOWHERE, action, since, view[_BEATS])

    def close(self) -> None:
        self._view.release()
        self._memory.close()


def start_beating(page: ProgressPage, interval_s: float = BEAT_S) -> threading.Event:
    """Beat on a thread of its own for the life of the process, or until the event is set."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(interval_s):
            page.beat()

    threading.Thread(target=run, daemon=True, name="beats").start()
    return ended
