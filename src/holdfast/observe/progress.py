"""A job's progress in the terminal: a live line where there is one, plain lines elsewhere."""

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from holdfast.observe.events import (
    CheckpointWritten,
    CoordinatorStarted,
    Decided,
    Event,
    FaultInjected,
    JobEnded,
    JobStarted,
    PlanChanged,
    PlanStarted,
    Recovered,
    Restored,
    StepDone,
    StepSkipped,
    StopRequested,
    WorkerLost,
    WorkersReady,
)
from holdfast.observe.quantities import count, format_bytes, format_seconds

_INTERNAL = ("order", "round")
"""Details of decisions that a line for people leaves out."""

MAX_STEP_LINES = 100
"""A longer run shows only some of its steps as plain lines."""


def describe_event(event: Event) -> str:
    """One line for everything but a step; empty where there is nothing to tell."""
    match event:
        case JobStarted():
            return (
                f"{event.name}: {event.model} ({event.num_parameters:,} parameters), "
                f"{count(event.steps, 'step')} of {count(event.micro_batches, 'micro-batch')}, "
                f"{count(event.num_workers, 'worker')}; writing to {event.run_dir}"
            )
        case PlanStarted():
            return f"plan: {event.shape}"
        case WorkersReady():
            return f"workers ready after {event.seconds:.1f} s"
        case StepSkipped():
            return f"step {event.step + 1} was not applied: {event.reason}"
        case PlanChanged():
            return describe_change(event)
        case Recovered():
            return describe_recovery(event)
        case Restored():
            return describe_restore(event)
        case CheckpointWritten(error=error) if error:
            return f"checkpoint of step {event.step} not written, will be tried again: {error}"
        case CheckpointWritten():
            return f"checkpoint: {event.path} ({event.reason})"
        case Decided():
            return "" if _is_detail(event) else event.reason
        case WorkerLost():
            return f"{event.worker} lost: {event.reason}"
        case CoordinatorStarted(term=term, reason=reason):
            return f"coordinator {term} took over: {reason}"
        case FaultInjected():
            return f"fault on purpose: {event.fault} for {event.target}"
        case StopRequested():
            return f"{event.signal}: {event.reason}"
        case JobEnded(outcome="stopped"):
            return f"stopped {after_steps(event.next_step)}: {event.reason}"
    return ""


def _is_detail(event: Decided) -> bool:
    """How a decision was reached is in the journal; what came of it has a line of its own."""
    is_verdict = "worker" in event.details and " is out: " in event.reason
    return is_verdict or not event.details or not event.details.keys().isdisjoint(_INTERNAL)


def describe_change(event: PlanChanged) -> str:
    words = [
        f"paused {format_seconds(event.stall_s)}",
        f"{format_bytes(event.bytes_moved)} moved",
        f"{event.groups_kept} of {count(event.groups_kept + event.groups_made, 'group')} kept",
    ]
    who = [
        f"{', '.join(names)} {verb}"
        for names, verb in ((event.joining, "joined"), (event.leaving, "left"))
        if names
    ]
    what = f"{' and '.join(who)}: " if who else "changed to "
    return f"{after_steps(event.step)}: {what}{event.shape} ({', '.join(words)})"


def describe_recovery(event: Recovered) -> str:
    without = f" without {', '.join(event.lost)}" if event.lost else ""
    again = (
        f", {count(event.micro_batches, 'micro-batch')} done again" if event.micro_batches else ""
    )
    return (
        f"{after_steps(event.step)}: recovered{without}: {event.shape} "
        f"(workers stopped {format_seconds(event.stall_s)}{again})"
    )


def describe_restore(event: Restored) -> str:
    origins = ", ".join(f"{format_bytes(n)} from {o}" for o, n in event.bytes_by_origin.items())
    return (
        f"restored to {after_steps(event.step)} with {event.shape} "
        f"({count(event.steps_redone, 'step')} again, {origins}, loaded in "
        f"{format_seconds(event.load_s)})"
    )


def after_steps(number: int) -> str:
    """Steps count from 0, so the number of the next step is how many are done."""
    return f"after {count(number, 'step')}"


def describe_step(step: StepDone, num_steps: int) -> str:
    width = len(str(num_steps))
    loss = "   inf" if step.loss is None else f"{step.loss:6.4f}"
    return (
        f"step {step.step + 1:{width}}/{num_steps}  loss {loss}  "
        f"{step.tokens_per_s:8,.0f} tokens/s  {format_seconds(step.step_time_s)}"
    )


class PlainProgress:
    """Lines, for logs and pipes."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._num_steps, self._every = 1, 1

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobStarted):
            self._num_steps = event.steps
            self._every = -(-event.steps // MAX_STEP_LINES)
        if isinstance(event, StepDone):
            number = event.step + 1
            if number % self._every == 0 or number in (1, self._num_steps):
                self._write(describe_step(event, self._num_steps))
        elif line := describe_event(event):
            self._write(line)

    def __enter__(self) -> "PlainProgress":
        return self

    def __exit__(self, *args: object) -> None:
        pass


class LiveProgress:
    """A bar that moves, and lines above it for what is worth keeping."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._console = console
        self._task = self._progress.add_task("starting", total=1)

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobStarted):
            self._progress.update(self._task, total=event.steps)
        if isinstance(event, StepDone):
            words = describe_step(event, 1).partition("  ")[2]
            self._progress.update(self._task, completed=event.step + 1, description=words)
        elif line := describe_event(event):
            self._progress.console.print(Text(line))

    def __enter__(self) -> "LiveProgress":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
