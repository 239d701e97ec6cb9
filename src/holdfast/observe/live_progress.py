"""A job while it runs, in the terminal: which workers are there, where it is, and what was decided.

Lines that are worth keeping scroll by above; below them a bar and a table stay and are kept up to
date. Everything is taken from events, so it shows what the journal says and nothing else. Where
there is no room for the table (many workers, a narrow window), there is one line instead.
"""

from collections import Counter
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.observe.events import (
    CoordinatorStarted,
    Event,
    FaultInjected,
    JobStarted,
    PlanChanged,
    ProtectionChanged,
    ProtectionLacking,
    Recovered,
    Restored,
    StepDone,
    WorkerLost,
    WorkersReady,
    WritingStopped,
)
from holdfast.observe.quantities import count, describe_protection, format_seconds
from holdfast.observe.screen_lines import ScreenLines
from holdfast.plan.plan import Plan

MAX_BAR_WIDTH, LEAST_BAR_WIDTH = 40, 8
MAX_ROWS = 16
"""Replicas in the table."""
CELL_WIDTH = 17
"""Of a worker with its state, and the lines around it."""
MAX_NAMES = 6


class WorkersView:
    """What is known of a job; `render` draws it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._state = dict.fromkeys(plan.workers, "starting")
        self._num_steps, self._step, self._loss, self._step_time_s = 1, 0, "", 0.0
        self._protection = ""

    def update(self, event: Event) -> None:
        match event:
            case JobStarted():
                self._num_steps = event.steps
            case WorkersReady():
                self._set(tuple(self._state), "alive")
            case StepDone():
                self._step, self._step_time_s = event.step + 1, event.step_time_s
                self._loss = "inf" if event.loss is None else f"{event.loss:.4f}"
            case WorkerLost():
                self._set((event.worker,), "lost")
            case Recovered():
                self._set(event.lost, "lost")
            case PlanChanged():
                self._set(event.joining, "alive")
                self._set(event.leaving, "left")
            case ProtectionChanged(against=against, not_against=not_against):
                self._protection = describe_protection(against, not_against)

    def _set(self, workers: tuple[str, ...], state: str) -> None:
        self._state.update((worker, state) for worker in workers)

    def render(self, width: int = 80) -> Group:
        parts: list[RenderableType] = [Text(self._bar(width), style="bold")]
        if self._protection:
            parts.append(Text(self._protection, style="dim"))
        parts.append(self._table() if self._has_room(width) else self._summary())
        return Group(*parts)

    def _bar(self, width: int) -> str:
        words = f"step {self._step}/{self._num_steps}"
        rest = f"loss {self._loss or '-'}"
        if self._step_time_s:
            rest += f"  {format_seconds(self._step_time_s)} a step"
        size = min(MAX_BAR_WIDTH, width - len(words) - len(rest) - 4)
        if size < LEAST_BAR_WIDTH:
            return f"{words} {rest}"
        done = round(size * min(1.0, self._step / self._num_steps))
        return f"{words} [{'#' * done}{'-' * (size - done)}] {rest}"

    def _has_room(self, width: int) -> bool:
        """Also: is every worker in the table that there is?"""
        stages = [len(stage.workers) for stage in self._plan.stages]
        columns = len({stage.index for stage in self._plan.stages})
        rows = len({stage.replica for stage in self._plan.stages})
        fits = 12 + columns * max(stages) * CELL_WIDTH <= width and rows <= MAX_ROWS
        return fits and all(worker in self._plan.seats for worker in self._state)

    def _summary(self) -> Text:
        line = Text(f"{count(len(self._state), 'worker')}: ")
        for number, (state, many) in enumerate(Counter(self._state.values()).items()):
            line.append(f"{', ' if number else ''}{many} {state}", style=_STATE_STYLES.get(state))
            if state == "lost":
                names = [name for name, its in self._state.items() if its == state]
                more = " ..." if len(names) > MAX_NAMES else ""
                line.append(f" ({', '.join(names[:MAX_NAMES])}{more})")
        return line

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
        for number, worker in enumerate(workers):
            state = self._state[worker]
            text = f"{' ' if number else ''}{worker} {state}"
            cell.append(text, style=_STATE_STYLES.get(state, "dim"))
        return cell


_STATE_STYLES = {"alive": "green", "lost": "bold red"}
_STYLES = {
    FaultInjected: "bold red",
    WorkerLost: "red",
    Recovered: "yellow",
    Restored: "yellow",
    CoordinatorStarted: "yellow",
    ProtectionLacking: "yellow",
    WritingStopped: "yellow",
    PlanChanged: "green",
}


class LiveProgress:
    """The view, kept up to date: for a terminal."""

    def __init__(self, console: Console, plan: Plan, *, is_verbose: bool = False) -> None:
        self._console, self._view = console, WorkersView(plan)
        self._lines = ScreenLines(is_verbose=is_verbose)
        self._live = Live(
            self._view.render(console.width), console=console, refresh_per_second=10, transient=True
        )

    def __call__(self, event: Event) -> None:
        self._view.update(event)
        self._live.update(self._view.render(self._console.width))
        if line := self._lines.line(event):
            self._console.print(Text(line, style=_STYLES.get(type(event), "")))

    def __enter__(self) -> "LiveProgress":
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()
