"""Callbacks on a thread of their own: the process that watches over the job never waits for them.

Events wait in a queue, so a callback that is slow for a while loses nothing; beyond MAX_WAITING
they are left out, and that is told. What a callback raises is reported, its own lines first, and it
is called again the next time. At the end of a job the thread has END_S to do what is left.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from holdfast.errors import own_traceback
from holdfast.observe.callbacks.callback import Callback, Handler, handlers_of, name_of
from holdfast.observe.events import Event, StepDone
from holdfast.observe.quantities import count

END_S = 60.0
MAX_WAITING = 100_000
MAX_TRACEBACKS = 3
"""Of one callback; further errors are counted."""

ReportLines = Callable[[list[str]], object]


class CallbackThread:
    """Call it with every event, inside its `with` block."""

    def __init__(
        self, callbacks: Sequence[Callback | Handler], report: ReportLines, end_s: float = END_S
    ) -> None:
        self._callbacks, self._report, self._end_s = tuple(callbacks), report, end_s
        self._waiting: queue.Queue[Event | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)
        self._num_left_out = 0
        self._num_errors: Counter[str] = Counter()
        self._step = 0

    def __call__(self, event: Event) -> None:
        if self._waiting.qsize() >= MAX_WAITING:
            self._num_left_out += 1
        else:
            self._waiting.put(event)

    def __enter__(self) -> "CallbackThread":
        if self._callbacks:
            self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        if not self._callbacks:
            return
        self._waiting.put(None)
        self._thread.join(self._end_s)
        if self._thread.is_alive():
            left = count(self._waiting.qsize(), "event")
            self._report([f"callbacks are not done after {self._end_s:g} s; {left} left out"])
        elif self._num_left_out:
            left = count(self._num_left_out, "event")
            self._report([f"callbacks were slower than the training: {left} left out"])
        for name, number in self._num_errors.items():
            if number > MAX_TRACEBACKS:
                self._report([f"callback {name} failed {number} times"])

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            self._deliver(event)
            if self._waiting.empty():
                self._flush()
        self._flush()

    def _deliver(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self._step = event.step + 1
        for callback in self._callbacks:
            for name, handler in handlers_of(callback, event):
                self._call(name, partial(handler, event))

    def _flush(self) -> None:
        for callback in self._callbacks:
            if isinstance(callback, Callback):
                self._call(f"{name_of(callback)}.flush", callback.flush)

    def _call(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except (Exception, SystemExit) as error:
            self._num_errors[name] += 1
            if self._num_errors[name] <= MAX_TRACEBACKS:
                self._report(self._explain(name, error))

    def _explain(self, name: str, error: BaseException) -> list[str]:
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        return [
            *own_traceback(error),
            f"callback {name} failed after {count(self._step, 'step')}: {what}; the training goes "
            f"on",
        ]
