"""A job while it runs, in the terminal: who is there, where it is, what was decided and why.

Everything is taken from events, so it shows what the journal says and nothing else.
"""

from collections import deque
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.observe.events import (
    CoordinatorStarted,
    Event,
    FaultInjected,
    JobStarted,
    PlanChanged,
    PlanStarted,
    Recovered,
    Restored,
    StepDone,
    WorkerLost,
    WorkersReady,
)
from holdfast.observe.progress import describe_event
from holdfast.observe.quantities import format_seconds
from holdfast.plan.plan import Plan

NUM_LINES = 9
BAR_WIDTH = 40


class CrewView:
    """What is known of a job; `render` draws it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._state = dict.fromkeys(plan.workers, "starting")
        self._lines: deque[tuple[str, str]] = deque(maxlen=NUM_LINES)
        self._num_steps, self._step, self._loss, self._step_time_s = 1, 0, "", 0.0

    def hear(self, event: Event) -> None:
        match event:
            case JobStarted():
                self._num_steps = event.steps
            case WorkersReady():
                self._set(self._plan.workers, "alive")
            case StepDone():
                self._step, self._step_time_s = event.step + 1, event.step_time_s
                self._loss = "inf" if event.loss is None else f"{event.loss:.4f}"
            case WorkerLost():
                self._set((event.worker,), "lost")
            case Recovered():
                self._set(event.lost, "lost")
            case PlanChanged():
                self._set(event.joining, "alive")
        style, line = describe(event)
        if line:
            self._lines.append((style, f"{self._step:4d}  {line}"))

    def _set(self, workers: tuple[str, ...], state: str) -> None:
        self._state.update((worker, state) for worker in workers if worker in self._state)

    def render(self) -> Group:
        done = round(BAR_WIDTH * self._step / self._num_steps)
        bar = "#" * done + "-" * (BAR_WIDTH - done)
        line = f"step {self._step}/{self._num_steps} [{bar}] loss {self._loss or '-'}"
        if self._step_time_s:
            line += f"  {format_seconds(self._step_time_s)} a step"
        lines = [Text(text, style=style) for style, text in self._lines]
        return Group(Text(line, style="bold"), self._table(), *lines)

    def _table(self) -> Table:
        """Replicas by stages, each worker with its state."""
        stages = sorted({stage.index for stage in self._plan.stages})
        table = Table("", *(f"stage {index}" for index in stages))
        for replica in sorted({stage.replica for stage in self._plan.stages}):
            row = [
                self._cell(stage.workers) for stage in self._plan.stages if stage.replica == replica
            ]
            table.add_row(f"replica {replica}", *row)
        return table

    def _cell(self, workers: tuple[str, ...]) -> Text:
        cell = Text()
        for worker in workers:
            state = self._state[worker]
            style = {"alive": "green", "lost": "bold red"}.get(state, "dim")
            cell.append(f"{worker} {state} ", style=style)
        return cell


_STYLES = {
    FaultInjected: "bold red",
    WorkerLost: "red",
    Recovered: "yellow",
    Restored: "yellow",
    CoordinatorStarted: "yellow",
    PlanChanged: "green",
}


def describe(event: Event) -> tuple[str, str]:
    """(style, line) of what is worth a line in a table that shows the rest."""
    if isinstance(event, JobStarted | PlanStarted | WorkersReady):
        return "", ""
    return _STYLES.get(type(event), ""), describe_event(event)


class LiveCrew:
    """The view, kept up to date where there is a terminal; lines elsewhere."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console, self._view = console, CrewView(plan)
        self._live = Live(self._view.render(), console=console, refresh_per_second=10)

    def __call__(self, event: Event) -> None:
        self._view.hear(event)
        if self._console.is_terminal:
            self._live.update(self._view.render())
            return
        style, line = describe(event)
        if line:
            self._console.print(Text(line, style=style))
        elif isinstance(event, StepDone) and event.step % 10 == 9:
            self._console.print(Text(f"step {event.step + 1}  loss {event.loss}"))

    def __enter__(self) -> "LiveCrew":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
