"""What a callback is: a function that gets every event, or an object with methods for some."""

from collections.abc import Callable, Iterator

from holdfast.observe.events import (
    CheckpointWritten,
    Evaluated,
    Event,
    JobEnded,
    JobStarted,
    PlanChanged,
    Recovered,
    Restored,
    StepDone,
)

Handler = Callable[[Event], object]


class Callback:
    """Called while a job runs; override what is of interest.

    The methods run in the process that started the job, on a thread beside it, in the order in
    which things happened. Training never waits for them. One that raises is reported, and neither
    stops the training nor is left out the next time.
    """

    def on_start(self, event: JobStarted) -> object:
        """The job begins, or goes on: `event.run` counts the runs in its directory."""

    def on_step(self, event: StepDone) -> object:
        """A step is done. After state was lost, steps that are done again come again."""

    def on_eval(self, event: Evaluated) -> object:
        """The loss over the validation set is known."""

    def on_checkpoint(self, event: CheckpointWritten) -> object:
        """A checkpoint is whole on disk, at `event.path`."""

    def on_recovery(self, event: Recovered | Restored) -> object:
        """Workers were lost and training goes on: with those that are left, or from a snapshot."""

    def on_plan_change(self, event: PlanChanged) -> object:
        """Another plan is in force: workers joined or left, or it was asked for."""

    def on_end(self, event: JobEnded) -> object:
        """The job is finished, stopped or failed: `event.outcome`."""

    def on_event(self, event: Event) -> object:
        """Anything happened: every event comes here, before the method for it."""

    def flush(self) -> object:
        """Nothing more is waiting right now: write what was collected."""


def handlers_of(callback: Callback | Handler, event: Event) -> Iterator[tuple[str, Handler]]:
    """(name, what is called) of an event, in order."""
    if not isinstance(callback, Callback):
        yield name_of(callback), callback
        return
    yield f"{name_of(callback)}.on_event", callback.on_event
    method = _method(event)
    if method:
        yield f"{name_of(callback)}.{method}", getattr(callback, method)


def _method(event: Event) -> str:
    """Empty: there is none for it."""
    match event:
        case JobStarted():
            return "on_start"
        case StepDone():
            return "on_step"
        case Evaluated():
            return "on_eval"
        case CheckpointWritten(error=""):
            return "on_checkpoint"
        case Recovered() | Restored(goes_on=False):
            return "on_recovery"
        case PlanChanged():
            return "on_plan_change"
        case JobEnded():
            return "on_end"
    return ""


def name_of(callback: object) -> str:
    """For messages: `my_project.log.Alarm`."""
    found = callback if hasattr(callback, "__qualname__") else type(callback)
    module = getattr(found, "__module__", "") or ""
    return f"{module}.{found.__qualname__}".removeprefix("__main__.").lstrip(".")
