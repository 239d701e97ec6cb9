"""What the parts of a trainer share: the machine that decides, what stays the same over all epochs,
and what the worker holds now.
"""

import time
from dataclasses import dataclass, field

from holdfast.control.order import Order, read_plan
from holdfast.control.report import Outcome
from holdfast.control.worker import WorkerMachine
from holdfast.control.worker_position import WorkerPosition
from holdfast.control.worker_reports import StepReport
from holdfast.engine.epoch import EpochBuilder, LiveEpoch, TrainerConfig, checksums
from holdfast.engine.interpreter import Hooks
from holdfast.engine.link import CoordinatorLink
from holdfast.engine.worker_groups import WorkerGroups
from holdfast.plan.plan import Plan
from holdfast.snapshot.copying.worker_snapshots import WorkerSnapshots
from holdfast.snapshot.layout import Version


@dataclass
class WorkerParts:
    machine: WorkerMachine
    config: TrainerConfig
    link: CoordinatorLink
    hooks: Hooks
    groups: WorkerGroups
    builder: EpochBuilder
    snapshots: WorkerSnapshots | None = None
    plans: dict[int, Plan] = field(default_factory=dict)
    epoch: LiveEpoch | None = None
    before: LiveEpoch | None = None
    """The epoch before a change, until the change cannot be reverted any more."""
    num_updates: int = 0
    """That the state has had."""
    broken_at: float = 0.0
    """When this worker could not go on; 0: it goes on."""
    ended_at: float = 0.0
    """When its last step was over."""

    @property
    def worker(self) -> str:
        return self.machine.position.member.name

    @property
    def position(self) -> WorkerPosition:
        return self.machine.position

    def learn_plan(self, order: Order) -> Plan:
        plan = self.plans[order.number] = read_plan(order.plan, self.plans)
        return plan

    def live_epoch(self) -> LiveEpoch:
        assert self.epoch is not None
        return self.epoch

    def prefetch(self, plan: Plan) -> None:
        """Work out what this worker does under a plan, beside the training."""
        self.builder.prefetch(plan)
        if self.snapshots is not None:
            self.snapshots.prefetch(plan)

    def enter(self, epoch: LiveEpoch | None, since: Version | None = None) -> None:
        """This is what the worker runs from now on. Snapshots are of it, too; `since`: see
        there.
        """
        self.epoch = epoch
        if self.snapshots is None:
            return
        if epoch is not None and epoch.interpreter is not None:
            self.snapshots.enter(epoch.plan, epoch.slices, since)
        else:
            self.snapshots.leave()

    # Steps

    def run_step(self, step: int, *, stop: bool) -> None:
        """One step under the current plan, or the rest of a broken one, and its report."""
        interpreter = self.live_epoch().interpreter
        assert interpreter is not None
        start = time.perf_counter()
        self.builder.begin_step()
        agreed = interpreter.run_step(step, stop=stop)
        self._step_done(
            agreed.outcome,
            start,
            is_ordinary=not interpreter.is_completing,
            eval_s=interpreter.evaluated_s,
        )

    def roll_forward(self, outcome: Outcome) -> None:
        """Apply the step that others have applied, with the gradients that are reduced here."""
        interpreter = self.live_epoch().interpreter
        assert interpreter is not None
        start = time.perf_counter()
        interpreter.roll_forward(outcome)
        self._step_done(outcome, start)

    def _step_done(
        self, outcome: Outcome, start: float, *, is_ordinary: bool = False, eval_s: float = 0.0
    ) -> None:
        self.ended_at = time.perf_counter()
        self.builder.stopwatch.read()
        measured = None
        if is_ordinary:
            measured = self.builder.take_times(self.live_epoch().plan, outcome.step)
        optimizer = self.config.optimizer
        sums = checksums(self.worker, self.live_epoch()) if self.config.verify else {}
        self.link.step_done(
            StepReport(
                step=outcome.step,
                epoch=self.position.epoch,
                seconds=self.ended_at - start - eval_s,
                loss=outcome.loss,
                norm=outcome.norm,
                num_tokens=outcome.num_tokens,
                learning_rate=optimizer.rate_at(outcome.step) * outcome.rate_factor,
                applied=outcome.applied,
                checksums=sums,
                measured=measured,
                eval_loss=outcome.eval_loss,
                eval_tokens=outcome.eval_tokens,
                eval_s=eval_s,
            )
        )
