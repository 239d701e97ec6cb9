"""Waiting for gloo, with a way out.

Gloo loses operations. When a connection ends while a message is half written or half read, the
wait for that message gets no error: it returns when its own time is up, in minutes. A live worker
would be taken for dead by then. So:

- A collective is waited for in slices, and its caller checks between them whether to go on.
- A message cannot be (a wait for it that times out closes the whole group), so a waiter thread
  waits in gloo, and the caller waits for the thread, in slices.
- A caller that finds its group given up, and gloo still waiting a while after that, leaves. The
  operation stays with a waiter thread, and with it the group, until gloo returns. All connections
  are closed by then, so nothing is written to the memory of the operation any more.
"""

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.engine.transport.gloo_errors import COLLECTIVE_TIMED_OUT
from holdfast.engine.transport.transport import LEFT_BEHIND

SLICE_S = 0.05
_SLICE = timedelta(seconds=SLICE_S)


def outcome(work: Any) -> str:
    """Waits as long as it takes. What went wrong, if anything did; not as an exception, since its
    traceback would keep the group alive.
    """
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    return ""


def wait_for_collective(work: Any, group: Any, is_given_up: Callable[[], bool]) -> str:
    """The same, with a way out. `group` is what must live as long as the operation."""
    while True:
        try:
            work.wait(_SLICE)
        except RuntimeError as error:
            if not str(error).startswith(COLLECTIVE_TIMED_OUT):
                return str(error)
        else:
            return ""
        if is_given_up():
            waiter = _idle_waiter()
            waiter.take(work, group)
            waiter.leave()
            return LEFT_BEHIND


def wait_for_message(work: Any, group: Any, is_given_up: Callable[[], bool]) -> str:
    """The same for a message."""
    waiter = _idle_waiter()
    waiter.take(work, group)
    while (reason := waiter.answer(SLICE_S)) is None:
        if is_given_up():
            waiter.leave()
            return LEFT_BEHIND
    _IDLE.append(waiter)
    return reason


class _WaiterThread:
    """A thread that waits for one operation after another."""

    def __init__(self) -> None:
        self._taken: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="waiter").start()

    def take(self, work: Any, group: Any) -> None:
        self._taken.put((work, group))

    def answer(self, timeout_s: float) -> str | None:
        """What went wrong with the next operation, or an empty text; None: it has not ended."""
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def leave(self) -> None:
        """End after the operation that it has."""
        self._taken.put(None)

    def _run(self) -> None:
        while (taken := self._taken.get()) is not None:
            reason = outcome(taken[0])
            del taken  # the group may end here, and with it its threads
            self._answers.put(reason)


_IDLE: list[_WaiterThread] = []


def _idle_waiter() -> _WaiterThread:
    try:
        return _IDLE.pop()
    except IndexError:
        return _WaiterThread()
