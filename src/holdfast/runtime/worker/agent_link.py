"""Between a worker's trainer and its agent: orders come down, states and reports go up.

A thread of its own receives, so that a freeze can end whatever the trainer is blocked in. If the
agent is gone, the worker ends at once.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from safetensors import SafetensorError

from holdfast.control.effects import Leave, ProbeWork, Stop, Void, WorkerMessage
from holdfast.control.order import Freeze, Order
from holdfast.control.snapshots.messages import PlaceCopies, SnapshotEvery
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport, StepReport
from holdfast.engine.measure import Probe, Sample, make_profile, unit_costs
from holdfast.engine.probe_work import time_probe
from holdfast.engine.state import Slice
from holdfast.engine.trainer import Trainer
from holdfast.errors import InternalError
from holdfast.plan.plan import Plan
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.record.final_state import write_final
from holdfast.runtime.wire.frames import Channel, WireError
from holdfast.runtime.wire.host_messages import Peer, Peers
from holdfast.runtime.wire.messages import (
    Assignment,
    FaultMessage,
    Finished,
    Measured,
    ProbeDone,
    ToWorker,
)
from holdfast.runtime.wire.snapshot_messages import (
    ArenaReady,
    ArenaWanted,
    LightCompleted,
    LightGiven,
    Sealed,
)
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.layout import Version
from holdfast.snapshot.memory.node_arenas import Layouts, pack_layouts

WARM_UP_STEPS = 2
"""Of every epoch; left out of what is measured."""
AWAY_S = 300.0
"""How long a shared run directory may be away at the end of a job."""
FULL_S = 10.0
"""How long a disk may be full then."""
TRY_AGAIN_S = 0.5


class WorkerLink:
    """(Link, Keeper) One worker's connection to the coordinator, and to its node's memory."""

    def __init__(
        self,
        assignment: Assignment,
        channel: Channel[ToWorker],
        *,
        on_gone: Callable[[], object],
        on_fault: Callable[[Fault], object],
        on_peers: Callable[[dict[str, Peer]], object] = lambda peers: None,
    ) -> None:
        """All three are called on another thread."""
        self._assignment, self._channel = assignment, channel
        self._on_gone, self._on_fault, self._on_peers = on_gone, on_fault, on_peers
        self.newest_freeze = 0
        self.trainer: Trainer | None = None
        self._interrupt: Callable[[Freeze], None] = lambda freeze: None
        self._received: queue.SimpleQueue[WorkerMessage] = queue.SimpleQueue()
        self._epoch = 0
        self._num_steps_of_epoch = 0
        self._warm_up: dict[Sample, deque[float]] = {}
        self._probes: deque[int] = deque()
        self._plan: Plan | None = None
        """Under which the last step was done."""

    def listen(self) -> None:
        """From now on."""
        threading.Thread(target=self._listen, daemon=True, name="orders").start()

    def _listen(self) -> None:
        with suppress(OSError, WireError):
            while (message := self._channel.receive()) is not None:
                self._receive(message)
        self._on_gone()

    def _receive(self, message: ToWorker) -> None:
        match message:
            case Freeze(round=number):
                self.newest_freeze = max(self.newest_freeze, number)
                self._received.put(message)
                self._interrupt(message)
            case Order() | Void() | Stop() | Leave():
                self._received.put(message)
            case ProbeWork(number=number):
                self._probes.append(number)
                if self.trainer is not None and self.trainer.is_idle:
                    self._run_probes(self.trainer)
            case FaultMessage(fault=fault):
                self._on_fault(fault)
            case Peers(addresses=addresses):
                self._on_peers(addresses)
            case ArenaReady(plan=plan, path=path, staging=staging):
                if self.trainer is not None and self.trainer.snapshots is not None:
                    self.trainer.snapshots.give(plan, path, staging)
            case LightCompleted(version=version, error=error):
                if self.trainer is not None and self.trainer.snapshots is not None:
                    self.trainer.snapshots.answered(version, error)
            case SnapshotEvery(every=every):
                if self.trainer is not None and self.trainer.snapshots is not None:
                    self.trainer.snapshots.set_every(every)
            case PlaceCopies(profile=profile):
                if self.trainer is not None and self.trainer.snapshots is not None:
                    self.trainer.snapshots.learn(profile)
            case _:
                raise InternalError(f"{type(message).__name__} is not for a worker that trains")

    # What the trainer asks for and reports.

    def on_freeze(self, call: Callable[[Freeze], None]) -> None:
        self._interrupt = call

    def wait(self, timeout_s: float) -> WorkerMessage | None:
        try:
            return self._received.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return None

    def tell(self, state: WorkerState) -> None:
        self._channel.send(state)
        if state.epoch != self._epoch:
            self._begin_epoch(state.epoch)

    def step_done(self, report: StepReport) -> None:
        self._channel.send(report)
        trainer = self.trainer
        assert trainer is not None
        self._run_probes(trainer)
        self._plan = trainer.plan
        self._num_steps_of_epoch += 1
        if self._num_steps_of_epoch == WARM_UP_STEPS:
            self._warm_up = dict(trainer.stopwatch.samples)
            trainer.stopwatch.clear()

    def _run_probes(self, trainer: Trainer) -> None:
        """Between two steps, or while this worker has none to do."""
        while self._probes:
            number = self._probes.popleft()
            slowness = trainer.stopwatch.slowdown.factor
            seconds = time_probe(trainer.device, trainer.emulated, slowness)
            self._channel.send(ProbeDone(number=number, seconds=seconds))

    def plan_changed(self, report: ChangeReport) -> None:
        self._channel.send(report)

    def recovered(self, report: RecoveryReport) -> None:
        self._channel.send(report)

    def restored(self, report: RestoreReport) -> None:
        self._channel.send(report)

    def want_arena(self, layouts: Layouts) -> None:
        self._channel.send(ArenaWanted(layouts=pack_layouts(layouts)))

    def sealed(self, plan: str, version: Version, cost: CopyCost) -> None:
        self._channel.send(Sealed(plan=plan, version=version, cost=cost))

    def light_given(self, version: Version, before: Version | None, cost: CopyCost) -> None:
        self._channel.send(LightGiven(version=version, before=before, cost=cost))

    def finished(self, next_step: int) -> None:
        trainer, assignment = self.trainer, self._assignment
        assert trainer is not None
        is_end = next_step == assignment.config.job.steps
        start = time.perf_counter()
        evaluated = trainer.evaluate_last(next_step) if is_end else None
        eval_s = time.perf_counter() - start
        self.send_measured(probe=is_end)
        final_bytes, final_error = 0, ""
        if assignment.final_dir and trainer.slices:
            final_bytes, final_error = self._write_final(next_step, trainer.slices)
        self._channel.send(
            Finished(
                epoch=self._epoch,
                next_step=next_step,
                staging_bytes=trainer.staging_bytes,
                final_bytes=final_bytes,
                final_error=final_error,
                eval_loss=evaluated[0] if evaluated is not None else None,
                eval_tokens=evaluated[1] if evaluated is not None else 0,
                eval_s=eval_s,
            )
        )

    def _write_final(self, next_step: int, slices: Mapping[str, Slice]) -> tuple[int, str]:
        """The size, or why it is not written: all steps are done, and nothing ends for that. The
        disk may be full, or a directory that hosts share be away, for a while only: it is tried
        again, until a freeze asks for this worker.
        """
        assignment = self._assignment
        folder, worker = assignment.final_dir, assignment.worker
        deadline = time.monotonic() + (AWAY_S if assignment.access is not None else FULL_S)
        while True:
            try:
                return write_final(folder, worker, self._epoch, next_step, slices), ""
            except (OSError, SafetensorError) as error:
                is_wanted = self.newest_freeze > self._epoch
                if is_wanted or time.monotonic() >= deadline:
                    return 0, f"{folder} is not whole: {error}"
            time.sleep(TRY_AGAIN_S)

    # Times.

    def _begin_epoch(self, epoch: int) -> None:
        """What was measured so far is of the epoch before."""
        self.send_measured(probe=False)
        self._epoch, self._num_steps_of_epoch, self._warm_up = epoch, 0, {}

    def send_measured(self, *, probe: bool) -> None:
        """The times of the epoch that ends; of its warm-up where there was nothing else.

        Probing links takes all workers with a role, so all of them must ask for it, or none.
        """
        trainer, plan = self.trainer, self._plan
        if trainer is None or plan is None or not self._num_steps_of_epoch:
            return
        stopwatch = trainer.stopwatch
        if not stopwatch.samples:
            stopwatch.samples.update(self._warm_up)
        if probe:
            profile = trainer.profile()
        else:
            medians = stopwatch.medians()
            costs = unit_costs(medians, plan)
            emulated = trainer.emulated is not None
            worker = self._assignment.worker
            profile = make_profile(costs, medians, Probe(), plan, worker, emulated=emulated)
        self._channel.send(Measured(epoch=self._epoch, profile=profile))
        stopwatch.clear()
