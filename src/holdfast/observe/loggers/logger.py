"""One small protocol for TensorBoard, Weights & Biases, MLflow and loggers of the user's own.

A logger is opened when a run begins, is given points in the order of steps, and is closed at the
end. It needs to know nothing of failures: `LogWriter` gives it every step once.

    after a restore      steps that are done again are left out
    after a new start    what the run before has logged is left out, and what it could not log any
                         more (it was killed) is taken from the metrics first

How far a log is, is kept in the run directory (`log/NAME.json`), written after the logger has
returned. A process that is killed between the two logs its last points once more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.observe.callbacks.callback import Callback
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
from holdfast.observe.journal import read_journal, read_metrics
from holdfast.observe.progress import describe_event
from holdfast.observe.run_directory import JOURNAL, METRICS, write_whole

FOLDER = "log"
MAX_WAITING = 100_000
"""Points, while a logger fails; of more, the newest are kept."""


class LogPoint(msgspec.Struct, frozen=True):
    """What is logged at one step."""

    step: int
    """So many steps are done."""
    values: dict[str, float] = {}
    text: str = ""
    """What happened, in a line; empty: nothing to tell."""


class LogRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a logger is opened with."""

    run_dir: Path
    name: str
    """Of the job."""
    project: str
    run: int
    """Counts the runs in this directory."""
    next_step: int
    """Points come from here on; what is logged from here on is not valid."""
    settings: dict[str, Any]
    """`section.key` of the job file, and its value."""
    id: str = ""
    """What the logger of the run before returned as its `id`."""


class Logger(Protocol):
    id: str
    """By which the next run finds this log again; empty: the directory is enough."""

    def write(self, points: Sequence[LogPoint]) -> object:
        """Log these; they are safe when this returns."""

    def close(self, outcome: str) -> object:
        """The job is finished, stopped or failed."""


OpenLogger = Callable[[LogRun], Logger]


class LogPosition(msgspec.Struct, frozen=True):
    """How far a log is."""

    steps: int = 0
    evals: int = -1
    """So many steps were done at the last one; -1: there was none."""
    id: str = ""


class LogWriter(Callback):
    """Gives a logger what happens in a job."""

    def __init__(
        self,
        name: str,
        open_logger: OpenLogger,
        *,
        project: str = "",
        every: int = 1,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self._name, self._open, self._every = name, open_logger, every
        self._project, self._settings = project, settings or {}
        self._logger: Logger | None = None
        self._position = LogPosition()
        self._points: list[LogPoint] = []

    def on_start(self, event: JobStarted) -> None:
        run_dir = Path(event.run_dir)
        self._file = run_dir / FOLDER / f"{self._name}.json"
        self._file.parent.mkdir(exist_ok=True)
        self._position = self._written = _read_position(self._file)
        self._logger = self._open(
            LogRun(
                run_dir=run_dir,
                name=event.name,
                project=self._project or event.name,
                run=event.run,
                next_step=self._position.steps,
                settings=self._settings,
                id=self._position.id,
            )
        )
        self._position = msgspec.structs.replace(self._position, id=self._logger.id)
        for earlier in _events_before(run_dir) if event.run > 1 else ():
            self._take(earlier)

    def on_event(self, event: Event) -> None:
        if isinstance(event, JobStarted) or self._logger is None:
            return
        self._take(event)

    def on_end(self, event: JobEnded) -> None:
        self.flush()
        logger, self._logger = self._logger, None
        if logger is not None:
            logger.close(event.outcome)

    def flush(self) -> None:
        if self._logger is None or not (self._points or self._position != self._written):
            return
        if self._points:
            del self._points[:-MAX_WAITING]
            self._logger.write(self._points)
            self._points = []
        write_whole(self._file, msgspec.json.encode(self._position).decode())
        self._written = self._position

    def _take(self, event: Event) -> None:
        match event:
            case StepDone(step=step) if step >= self._position.steps:
                self._position = msgspec.structs.replace(self._position, steps=step + 1)
                if (step + 1) % self._every == 0 or step == 0:
                    self._points.append(LogPoint(step + 1, step_values(event)))
            case Evaluated(step=step) if step > self._position.evals:
                self._position = msgspec.structs.replace(self._position, evals=step)
                self._points.append(LogPoint(step, _finite({"eval/loss": event.loss})))
            case Recovered() | Restored() | PlanChanged() | CheckpointWritten():
                # Never before what is logged: some services take steps in their order only.
                at = max(event.step, self._position.steps)
                self._points.append(LogPoint(at, text=describe_event(event)))


def step_values(step: StepDone) -> dict[str, float]:
    return _finite(
        {
            "train/loss": step.loss,
            "train/grad_norm": step.norm,
            "train/learning_rate": step.learning_rate,
            "train/tokens_per_s": step.tokens_per_s,
            "train/step_time_s": step.step_time_s,
        }
    )


def _finite(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and isfinite(value)}


def _read_position(path: Path) -> LogPosition:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=LogPosition)
    return LogPosition()


def _events_before(run_dir: Path) -> Iterator[Event]:
    """Steps and evaluations in a run directory; those that were done again come more than once."""
    with suppress(FileNotFoundError):
        yield from read_metrics(run_dir / METRICS)
        yield from (e for e in read_journal(run_dir / JOURNAL) if isinstance(e, Evaluated))
