"""A trainer's connection to those who decide: words come down, states and reports go up."""

from collections.abc import Callable
from typing import Protocol

from holdfast.control.effects import WorkerMessage
from holdfast.control.order import Freeze
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport, StepReport


class Reporter(Protocol):
    """What a trainer tells of its work."""

    def step_done(self, report: StepReport) -> None: ...

    def plan_changed(self, report: ChangeReport) -> None: ...

    def recovered(self, report: RecoveryReport) -> None: ...

    def restored(self, report: RestoreReport) -> None: ...


class CoordinatorLink(Reporter, Protocol):
    newest_freeze: int
    """The highest round that a freeze has come for, be it read yet or not."""

    def on_freeze(self, call: Callable[[Freeze], None]) -> None:
        """`call` is called when a freeze comes, from another thread: it has to end whatever the
        trainer is blocked in.
        """

    def wait(self, timeout_s: float) -> WorkerMessage | None:
        """The next word; None if none comes in time."""

    def tell(self, state: WorkerState) -> None:
        """Where the worker is, whenever something in it has changed."""

    def finished(self, next_step: int) -> None:
        """All steps are done, or an agreed stop."""
