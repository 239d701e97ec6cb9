"""Idle priority: taken by the thread that asks, and given back."""

import os
import threading

from holdfast.snapshot.copying.priority import lower_thread, may_return, set_idle


def test_a_thread_is_lowered_and_raised_again() -> None:
    seen: list[int] = []

    def work() -> None:
        own = threading.get_native_id()
        lower_thread()
        seen.append(os.sched_getscheduler(own))
        set_idle(own, False)
        seen.append(os.sched_getscheduler(own))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    lowered = os.SCHED_IDLE if may_return() else os.SCHED_OTHER
    assert seen == [lowered, os.SCHED_OTHER]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_thread_that_has_ended_is_left_alone() -> None:
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(threading.get_native_id()))
    thread.start()
    thread.join()
    set_idle(ended[0], True)
