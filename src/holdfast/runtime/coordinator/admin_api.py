"""What the coordinator does for people: it says how the job is doing, and breaks things on
purpose.
"""

import logging
import os
import random
import signal
from collections.abc import Callable

import msgspec

from holdfast.control.message import Message
from holdfast.control.view import CoordinatorView
from holdfast.errors import HoldfastError
from holdfast.observe.events import FaultInjected
from holdfast.observe.progress import after_steps
from holdfast.plan.workers import node_of
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.status import make_status
from holdfast.runtime.faults.injector import (
    FaultSchedule,
    find_target,
    place_fault,
    place_faults,
)
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.wire.connection import Strangers
from holdfast.runtime.wire.messages import (
    CheckpointJob,
    Done,
    FromClient,
    InjectFault,
    InjectRequest,
    StatusReply,
    StatusRequest,
    StopJob,
)

_LOG = logging.getLogger(__name__)

LOOK_MS = 200


class AdminApi:
    def __init__(
        self,
        spec: CoordinatorSpec,
        view: CoordinatorView,
        run_log: RunLog,
        dispatch: Dispatch,
        strangers: Strangers,
        now_ms: int,
        stop: Callable[[], object],
        checkpoint: Callable[[str], object],
    ) -> None:
        """`stop`: ends the job as a signal would; `checkpoint`: writes one for this signal."""
        self.stop, self._checkpoint = stop, checkpoint
        self._spec, self._view, self._run_log = spec, view, run_log
        self._dispatch, self._strangers = dispatch, strangers
        seed = spec.config.job.seed
        workers = Job(spec.config, spec.plans, ()).workers
        faults = place_faults(spec.config.faults, spec.plans[0].plan, seed, workers)
        self._faults = FaultSchedule(faults, seed, now_ms, run_log.faults_before)
        self._chance = random.Random(seed)

    def serve(self, request: FromClient) -> Message:
        match request:
            case StatusRequest():
                return StatusReply(status=self.status())
            case InjectRequest(fault=fault):
                try:
                    return Done(text=self.inject(fault))
                except HoldfastError as error:
                    return Done(text=str(error), ok=False)
            case StopJob():
                self.stop()
                return Done(text=f"stopping with a checkpoint, {after_steps(self._view.next_step)}")
            case CheckpointJob(signal=name):
                self._checkpoint(name)
                return Done(text=f"a checkpoint, {after_steps(self._view.next_step)}")

    def status(self) -> bytes:
        job = self._spec.config.job
        return msgspec.json.encode(
            make_status(
                job.name,
                self._spec.run_dir,
                job.steps,
                self._view,
                self._run_log,
                self._strangers.num_refused,
                emulated=self._spec.config.emulate.is_on,
            )
        )

    def due_ms(self, now_ms: int) -> int:
        """When to look whether a fault is due; their times are no matter of milliseconds."""
        return now_ms + (LOOK_MS if self._faults.is_waiting else 10 * LOOK_MS)

    def inject_due(self, now_ms: int) -> None:
        """What the job file has for now."""
        for fault in self._faults.due(self._view.next_step, now_ms):
            try:
                self.inject(fault)
            except HoldfastError as error:
                _LOG.warning("%s for %s was not injected: %s", fault.kind, fault.target, error)

    def _checked_link(self, fault: Fault) -> str:
        if not self._spec.config.emulate.is_on:
            raise HoldfastError(f"{fault.kind} needs a job with [emulate]")
        return place_fault(fault, self._view.plan, self._chance).target

    def inject(self, fault: Fault) -> str:
        """What was done."""
        step = self._view.next_step
        target = "coordinator"
        if fault.hits_all:
            target = self._checked_link(fault)
        elif fault.kind != "COORDINATOR_LOSS":
            plan = self._view.plan
            workers = tuple(dict.fromkeys((*plan.workers, *self._view.workers)))
            target = find_target(fault, plan, self._chance, workers)
        self._run_log.tell(
            [
                FaultInjected(
                    fault=fault.kind,
                    target=target,
                    step=step,
                    factor=fault.slowness,
                    duration_s=fault.duration_s,
                    steps=fault.steps,
                    reason="on purpose: [[faults]] or inject",
                )
            ]
        )
        if fault.kind == "COORDINATOR_LOSS":
            os.kill(os.getpid(), signal.SIGKILL)
        placed = msgspec.structs.replace(fault, target=target)
        if fault.hits_all:
            self._dispatch.to_all(InjectFault(fault=placed))
            return f"{fault.kind} for {target}, {after_steps(step)}"
        if not self._dispatch.to_node(node_of(target), InjectFault(fault=placed)):
            raise HoldfastError(f"{fault.kind}: the node of {target} is not connected")
        return f"{fault.kind} for {target}, {after_steps(step)}"
