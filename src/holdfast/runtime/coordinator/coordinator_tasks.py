"""What the coordinator does beside messages: it ticks, keeps its term, probes nodes, talks to the
planner.

An exception in any of these ends the process, as one in a message does: a task that has ended with
it does nothing any more, and only a successor finds out what is missing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class CoordinatorTasks:
    """Tasks that run until they are done, or all are cancelled."""

    def __init__(self, end_with: Callable[[BaseException], object]) -> None:
        """`end_with`: called with the exception that a task has ended with."""
        self._end_with = end_with
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._end_with(error)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
