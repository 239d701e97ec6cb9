"""A job's progress in plain lines. For a terminal: `live_progress`."""

from collections.abc import Callable

from holdfast.observe.events import Event, JobStarted, StepDone
from holdfast.observe.progress import describe_step
from holdfast.observe.screen_lines import ScreenLines

MAX_STEP_LINES = 100
"""A longer run shows only some of its steps."""


class PlainProgress:
    """Lines, for logs and pipes."""

    def __init__(self, write: Callable[[str], object], *, is_verbose: bool = False) -> None:
        self._write, self._lines = write, ScreenLines(is_verbose=is_verbose)
        self._num_steps, self._every = 1, 1

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobStarted):
            self._num_steps = event.steps
            self._every = -(-event.steps // MAX_STEP_LINES)
        if isinstance(event, StepDone):
            number = event.step + 1
            if number % self._every == 0 or number in (1, self._num_steps):
                self._write(describe_step(event, self._num_steps))
        elif line := self._lines.line(event):
            self._write(line)

    def __enter__(self) -> "PlainProgress":
        return self

    def __exit__(self, *args: object) -> None:
        pass
