"""Waiting for gloo, with a way out.

Gloo loses operations. When a connection ends while a message is half written or half read, nobody
tells whoever waits for that message, and no later error reaches it: it returns when its own time is
up, minutes later. A worker that is alive would be taken for dead by then. So:

- A collective is waited for in slices, and its caller looks up between them.
- A message cannot be (a wait for it that times out closes the whole group), so a thread of its own,
  the porter, waits in gloo, and the caller waits for the porter, in slices, too.
- Who looks up, finds the group given up, and has seen gloo not return for a while after that, goes
  away. The operation stays with a porter, and with it the group, until gloo lets go of both. All
  connections are closed by then, so nothing is written to the memory of the operation any more.
"""

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

SLICE_S = 0.05
_SLICE = timedelta(seconds=SLICE_S)
_TIMED_OUT = "Operation timed out!"
"""What torch says at the end of a slice, and of nothing else."""


LEFT_BEHIND = "it has not ended, and nobody waits for it any more"


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
            if not str(error).startswith(_TIMED_OUT):
                return str(error)
        else:
            return ""
        if is_given_up():
            porter = _porter()
            porter.take(work, group)
            porter.leave()
            return LEFT_BEHIND


def wait_for_message(work: Any, group: Any, is_given_up: Callable[[], bool]) -> str:
    """The same for a message."""
    porter = _porter()
    porter.take(work, group)
    while (reason := porter.answer(SLICE_S)) is None:
        if is_given_up():
            porter.leave()
            return LEFT_BEHIND
    _IDLE.append(porter)
    return reason


class _Porter:
    """A thread that waits for one operation after another."""

    def __init__(self) -> None:
        self._taken: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="porter").start()

    def take(self, work: Any, group: Any) -> None:
        self._taken.put((work, group))

    def answer(self, timeout_s: float) -> str | None:
        """What went wrong with the next operation, or an empty text; None: it has not ended."""
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def leave(self) -> None:
        """Nobody will ask for this porter again: what it has is its last."""
        self._taken.put(None)

    def _run(self) -> None:
        while (taken := self._taken.get()) is not None:
            reason = outcome(taken[0])
            del taken  # the group may end here, and with it its threads
            self._answers.put(reason)


_IDLE: list[_Porter] = []


def _porter() -> _Porter:
    try:
        return _IDLE.pop()
    except IndexError:
        return _Porter()
