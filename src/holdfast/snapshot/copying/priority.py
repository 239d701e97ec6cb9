"""Threads that only take what is left over."""

import os
import threading
from contextlib import suppress
from functools import cache


@cache
def may_return() -> bool:
    """May a thread of ours come back from idle priority? Without the right to, one that holds
    something others wait for could keep them waiting for ever. Tried on a thread that ends.
    """
    answers: list[bool] = []

    def attempt() -> None:
        try:
            _set(threading.get_native_id(), os.SCHED_IDLE)
            _set(threading.get_native_id(), os.SCHED_OTHER)
            answers.append(True)
        except OSError:
            answers.append(False)

    thread = threading.Thread(target=attempt, name="priority check")
    thread.start()
    thread.join()
    return answers == [True]


def lower_thread() -> None:
    """This thread runs only where nothing else wants to, if it can be brought back from there."""
    if may_return():
        set_idle(threading.get_native_id(), True)


def set_idle(thread: int, idle: bool) -> None:
    """`thread` is its number in the system. One that has ended is left alone."""
    with suppress(OSError):
        _set(thread, os.SCHED_IDLE if idle else os.SCHED_OTHER)


def _set(thread: int, policy: int) -> None:
    os.sched_setscheduler(thread, policy, os.sched_param(0))
