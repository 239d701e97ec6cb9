"""A worker that trains: the worker machine, carried out with tensors.

The machine decides (control/worker.py). Here its commands are carried out one after the other on
one thread, each to its end, and it is told what came of them. Before every command messages are
read; a freeze also interrupts the command that is under way, from the thread that receives it.
What is made beside the training is made on threads of its own.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from holdfast.control.order import Order
from holdfast.control.report import GroupLevel, Member, Outcome
from holdfast.control.worker import WorkerMachine
from holdfast.control.worker_commands import (
    Broke,
    BuildGroups,
    Command,
    CompleteStep,
    DropBefore,
    DropChange,
    Enter,
    Entered,
    Exit,
    FinishRun,
    Idle,
    JoinChange,
    LeaveEpoch,
    LoadFailed,
    LoadState,
    MakeState,
    PrepareChange,
    Quiesce,
    Quiesced,
    Refuse,
    RollForward,
    RunFinished,
    RunStep,
    SendState,
    StepEnded,
    SwitchTo,
    WorkerEvent,
)
from holdfast.control.worker_position import WorkerPosition
from holdfast.engine.change_executor import ChangeExecutor
from holdfast.engine.communicator import Communicator
from holdfast.engine.data import DataSource
from holdfast.engine.emulated_groups import emulate
from holdfast.engine.epoch import EpochBuilder, LiveEpoch, Model, TrainerConfig, checksums
from holdfast.engine.evaluation import EvalPlan
from holdfast.engine.groups import GroupBroken, find_group_error
from holdfast.engine.interpreter import Hooks
from holdfast.engine.link import CoordinatorLink
from holdfast.engine.measure import Stopwatch, make_profile, probe_groups, unit_costs
from holdfast.engine.order_executor import OrderExecutor
from holdfast.engine.state import Slice
from holdfast.engine.worker_groups import POLL_S, WorkerGroups
from holdfast.engine.worker_parts import WorkerParts
from holdfast.errors import InternalError
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.copying.gaps import Gaps
from holdfast.snapshot.copying.worker_snapshots import Keeper, WorkerSnapshots
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.job_state import CannotRestore

_LOG = logging.getLogger(__name__)

_WAIT_S = 60.0
_QUICK = (SendState, Refuse, DropBefore, DropChange)
"""Carried out as soon as they are next, without a look at the messages."""


class Trainer:
    def __init__(
        self,
        member: Member,
        *,
        model: Model,
        data: DataSource,
        config: TrainerConfig,
        store: Any,
        link: CoordinatorLink,
        hooks: Hooks | None = None,
        evaluated: EvalPlan | None = None,
    ) -> None:
        """`evaluated`: a validation set, and when."""
        hooks = hooks or Hooks()
        machine = WorkerMachine(member, num_steps=config.num_steps)
        self.emulated, make_group = emulate(config.emulation, member.name, data)
        self._parts = WorkerParts(
            machine,
            config,
            link,
            hooks,
            WorkerGroups(machine.position, config, store, link, make_group),
            EpochBuilder(
                machine,
                model=model,
                data=data,
                config=config,
                hooks=hooks,
                emulated=self.emulated,
                evaluated=evaluated,
            ),
        )
        self._machine = machine
        self._orders = OrderExecutor(self._parts)
        self._changes = ChangeExecutor(self._parts, store)
        hooks.is_prepared = self._changes.is_prepared
        hooks.after_apply = self._applied
        self._commands: deque[Command] = deque()
        self._failure: CannotRestore | None = None

    # The loop

    def start(self) -> None:
        """Until the first order is carried out."""
        while not self.position.epoch and not self._machine.has_left:
            self._go_on()

    def run(self) -> int:
        """Until it is told to leave; the number of the step that would come next."""
        while not self._machine.has_left:
            self._go_on()
        return self.position.version

    def run_step(self) -> None:
        """Until one more step is done: for a caller with a loop of its own."""
        version = self.position.version
        while self.position.version == version and not self._machine.has_left:
            self._go_on()

    def _go_on(self) -> None:
        """Carry out the next command, or wait for a message."""
        self._receive(0.0)
        if not self._commands:
            self._look_around()
        if self._commands:
            command = self._commands.popleft()
            self._attempt(lambda: self._carry_out(command))
        elif self._changes.is_joining:
            self._attempt(lambda: self._changes.go_on_joining(POLL_S))
        else:
            self._receive(_WAIT_S)

    def _receive(self, timeout_s: float) -> None:
        """Take the messages that are there, or wait for one."""
        while not self._machine.has_left:
            message = self._parts.link.wait(timeout_s)
            if message is None:
                return
            self._take(message)
            timeout_s = 0.0

    def _look_around(self) -> None:
        failed = self._changes.failure()
        if failed is not None:
            self._take(failed)
        if not self._commands:
            self._take(Idle())

    def _take(self, event: WorkerEvent) -> None:
        for command in self._machine.take(event):
            if isinstance(command, Quiesce):
                self._commands.clear()
            self._commands.append(command)
        self._do_quick_ones()

    def _do_quick_ones(self) -> None:
        while self._commands and isinstance(self._commands[0], _QUICK):
            self._do_quickly(self._commands.popleft())

    def _attempt(self, call: Callable[[], WorkerEvent | None]) -> None:
        event = self._try(call)
        if event is not None:
            self._take(event)
        if isinstance(event, Entered):
            broke = self._try(self._say_entered)
            if broke is not None:
                self._take(broke)
        self._do_quick_ones()

    def _try(self, call: Callable[[], WorkerEvent | None]) -> WorkerEvent | None:
        """What came of it; be it that a group broke."""
        try:
            return call()
        except Exception as error:
            broken = self._as_broken(error)
            if broken is None:
                raise
            return self._broke(broken)

    def _as_broken(self, error: Exception) -> GroupBroken | None:
        """What is only the end of a group, whatever it was wrapped in; other code may also make an
        error of its own of a group that was given up under it.
        """
        found = find_group_error(error)
        if found is None and isinstance(error, RuntimeError):
            woken = self.communicator.why_ended
            found = GroupBroken(f"{woken}: {error}") if woken else None
        return found

    def _broke(self, error: GroupBroken) -> Broke:
        """A freeze that has come says more than what it has broken, and is taken first."""
        self._parts.broken_at = self._parts.broken_at or time.perf_counter()
        self._receive(0.0)
        if not self.position.is_frozen or self._machine.order is not None:
            _LOG.warning("step %d broke off: %s", self.position.version, error)
        return Broke(str(error), error.blamed)

    def _do_quickly(self, command: Command) -> None:
        match command:
            case SendState(state=state):
                self._parts.link.tell(state)
            case Refuse(order=order, reason=reason):
                _LOG.warning("order %d (%s) is refused: %s", order.number, order.kind, reason)
            case DropChange(reason=reason):
                self._changes.drop(reason)
            case DropBefore():
                self._parts.before = None

    def _carry_out(self, command: Command) -> WorkerEvent | None:
        """What the machine is told when it is done."""
        match command:
            case RunStep(step=step, stop=stop):
                self._parts.run_step(step, stop=stop)
                return StepEnded()
            case CompleteStep():
                self._orders.complete_step(command)
                return StepEnded()
            case Quiesce():
                return Quiesced(self._quiesce(command))
            case Enter(order=order):
                self._orders.enter(command)
                return Entered(order.number)
            case LeaveEpoch(order=order):
                self._orders.leave_epoch(order)
                return Entered(order.number)
            case SwitchTo(order=order):
                self._changes.switch(order)
                return Entered(order.number)
            case FinishRun(next_step=next_step):
                self._finish(next_step)
                return RunFinished()
            case LoadState(order=order):
                return self._load(order)
            case Exit():
                if self._failure is not None:
                    raise self._failure
            case _:
                self._begin(command)
        return None

    def _begin(self, command: Command) -> None:
        """Commands whose end is not told."""
        match command:
            case BuildGroups(order=order):
                self._orders.build_groups(order)
            case MakeState(order=order):
                self._orders.make_state(order)
            case RollForward(outcome=outcome):
                self._orders.roll_forward(outcome)
            case PrepareChange(order=order):
                self._changes.prepare(order)
            case JoinChange(order=order):
                self._changes.join(order)
            case _:
                raise InternalError(f"the trainer cannot carry out {command}")

    def _say_entered(self) -> None:
        self._changes.say_entered()
        self._orders.say_entered()

    def _load(self, order: Order) -> LoadFailed | None:
        try:
            self._orders.load_state(order)
        except CannotRestore as error:
            self._failure = error
            return LoadFailed(str(error))
        return None

    def _quiesce(self, command: Quiesce) -> dict[str, GroupLevel]:
        """Stop here, and note what was left half done; which groups are at rest."""
        parts = self._parts
        parts.broken_at = parts.broken_at or time.perf_counter()
        levels = parts.groups.quiesce(command)
        if levels is None:  # quiesced again at once, by the freeze
            return {}
        interpreter = parts.epoch.interpreter if parts.epoch is not None else None
        if interpreter is not None:
            interpreter.break_off()
            if parts.builder.device.type == "cuda":
                torch.cuda.synchronize(parts.builder.device)
        return levels

    def _finish(self, next_step: int) -> None:
        """Other workers may still need this one to recover."""
        if self.snapshots is not None:
            self.snapshots.flush()
        self._parts.link.finished(next_step)

    def _applied(self, outcome: Outcome) -> None:
        self._parts.num_updates += outcome.applied
        self._changes.give_result(outcome)

    # Snapshots

    @property
    def snapshots(self) -> WorkerSnapshots | None:
        return self._parts.snapshots

    @property
    def gaps(self) -> Gaps:
        """What copies state while this worker waits."""
        return self._parts.hooks.gaps

    @gaps.setter
    def gaps(self, gaps: Gaps) -> None:
        self._parts.hooks.gaps = gaps

    def keep_snapshots(self, options: SnapshotOptions, keeper: Keeper) -> WorkerSnapshots:
        """From the next epoch on; `keeper` makes the memory for them."""
        parts = self._parts
        self.gaps = parts.snapshots = WorkerSnapshots(
            options,
            parts.worker,
            keeper,
            device=parts.builder.device,
            current=self._snapshot_version,
            num_updates=lambda: parts.num_updates,
        )
        return parts.snapshots

    def _snapshot_version(self) -> Version | None:
        """What a snapshot of this worker's state would be called."""
        outcome = self.position.outcome
        return Version(self.position.version, outcome.epoch) if outcome is not None else None

    # What others ask for

    @property
    def position(self) -> WorkerPosition:
        return self._machine.position

    @property
    def communicator(self) -> Communicator:
        return self._parts.groups.communicator

    @property
    def stopwatch(self) -> Stopwatch:
        return self._parts.builder.stopwatch

    @property
    def device(self) -> torch.device:
        return self._parts.builder.device

    @property
    def is_idle(self) -> bool:
        """It has no place in the plan."""
        return self._parts.epoch is None or self._parts.epoch.interpreter is None

    @property
    def epoch(self) -> LiveEpoch:
        return self._parts.live_epoch()

    @property
    def plan(self) -> Plan:
        return self.epoch.plan

    @property
    def slices(self) -> dict[str, Slice]:
        return self._parts.epoch.slices if self._parts.epoch is not None else {}

    @property
    def staging_bytes(self) -> int:
        reduction = self._parts.epoch.reduction if self._parts.epoch is not None else None
        return reduction.staging_bytes if reduction is not None else 0

    def profile(self) -> Profile:
        """What this worker has measured. All must ask at the same step: links are probed."""
        medians = self.stopwatch.medians()
        probe = probe_groups(self.epoch.mesh, self._parts.worker)
        costs = unit_costs(medians, self.plan)
        emulated = self.emulated is not None
        return make_profile(costs, medians, probe, self.plan, self._parts.worker, emulated=emulated)

    def evaluate_last(self, step: int) -> tuple[float, int] | None:
        """Of the state behind the last step; all must ask. None: there is no validation set."""
        interpreter = self._parts.epoch.interpreter if self._parts.epoch is not None else None
        return interpreter.evaluate_last(step) if interpreter is not None else None

    def checksums(self) -> dict[str, int]:
        """Of every piece that several workers hold, parameters and moments: equal on all of
        them.
        """
        return checksums(self._parts.worker, self.epoch)

    def close(self) -> None:
        self._changes.drop("the end")
        if self.snapshots is not None:
            self.snapshots.leave()
        self._parts.groups.close()
