"""A trainer without a coordinator: a list of plans, each from a certain step on, and no recovery.

For benchmarks, tests and scripts. A group that breaks ends the run with that error.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.control.effects import Leave, Stop, WorkerMessage
from holdfast.control.order import Freeze, FullPlan, Order
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import (
    ChangeReport,
    Planned,
    RecoveryReport,
    RestoreReport,
    StepReport,
)
from holdfast.engine.data import DataSource
from holdfast.engine.epoch import Model, TrainerConfig
from holdfast.engine.evaluation import EvalPlan
from holdfast.engine.groups import GroupBroken
from holdfast.engine.interpreter import Hooks
from holdfast.engine.trainer import Trainer
from holdfast.plan.text import format_plan

FIRST_EPOCH = 1
_POLL_S = 0.02


class Listener(Protocol):
    """Who is told how a scripted run goes, and may end it."""

    def step_done(self, report: StepReport) -> None: ...

    def plan_changed(self, report: ChangeReport) -> None: ...

    def stop_requested(self) -> bool: ...


def scripted_trainer(
    worker: str,
    plans: Sequence[Planned],
    *,
    model: Model,
    data: DataSource,
    config: TrainerConfig,
    store: Any,
    listener: Listener,
    hooks: Hooks | None = None,
    evaluated: EvalPlan | None = None,
) -> Trainer:
    """A trainer whose first groups and state are made."""
    link = ScriptedLink(worker, plans, config.num_steps, listener)
    trainer = Trainer(
        Member(worker, 1),
        model=model,
        data=data,
        config=config,
        store=store,
        link=link,
        hooks=hooks,
        evaluated=evaluated,
    )
    trainer.start()
    return trainer


class ScriptedLink:
    """(Link) Gives every order as soon as the one before it is entered."""

    newest_freeze = 0

    def __init__(
        self, worker: str, plans: Sequence[Planned], num_steps: int, listener: Listener
    ) -> None:
        self._worker, self._listener = worker, listener
        self._plans = [p for n, p in enumerate(plans) if n == 0 or p.at_step < num_steps]
        self._num_given = self._num_entered = 0
        self._is_finished = self._was_stopped = False

    def on_freeze(self, call: Callable[[Freeze], None]) -> None:
        """No freeze ever comes."""

    def wait(self, timeout_s: float) -> WorkerMessage | None:
        """Whatever there is to say is known."""
        if self._is_finished:
            return Leave()
        has_role = bool(self._num_entered) and self._worker in self._plan.seats
        if self._num_entered and not self._was_stopped and self._listener.stop_requested():
            self._was_stopped = True
            return Stop() if has_role else Leave()
        if self._num_given == self._num_entered and self._num_given < len(self._plans):
            self._num_given += 1
            return self._order(self._num_given - 1)
        if self._num_entered == len(self._plans) and not has_role:
            return Leave()
        time.sleep(min(timeout_s, _POLL_S))
        return None

    @property
    def _plan(self) -> Any:
        return self._plans[self._num_entered - 1].plan

    def _order(self, at: int) -> Order:
        planned = self._plans[at]
        return Order(
            number=FIRST_EPOCH + at,
            kind="change" if at else "start",
            plan=FullPlan(format_plan(planned.plan)),
            incarnations=dict.fromkeys(planned.plan.workers, 1),
            at_step=planned.at_step,
            reason="the script says so",
        )

    def tell(self, state: WorkerState) -> None:
        if state.broken:
            raise GroupBroken(state.broken)
        self._num_entered = max(self._num_entered, state.epoch - FIRST_EPOCH + 1)

    def finished(self, next_step: int) -> None:
        self._is_finished = True

    def step_done(self, report: StepReport) -> None:
        """Plans are numbered by their place in the list."""
        epoch = report.epoch - FIRST_EPOCH
        self._listener.step_done(msgspec.structs.replace(report, epoch=epoch))

    def plan_changed(self, report: ChangeReport) -> None:
        epoch = report.epoch - FIRST_EPOCH
        self._listener.plan_changed(msgspec.structs.replace(report, epoch=epoch))

    def recovered(self, report: RecoveryReport) -> None:
        raise AssertionError("no recovery is ordered here")

    def restored(self, report: RestoreReport) -> None:
        raise AssertionError("there are no snapshots to restore from here")
