"""What the coordinator does for people: it says how the job is doing, and breaks things on
purpose.
"""

import logging
import os
import random
import signal
from collections.abc import Mapping

import msgspec

from holdfast.control.state import WorkerState
from holdfast.errors import HoldfastError
from holdfast.observe.events import FaultInjected
from holdfast.observe.progress import after_steps
from holdfast.plan.workers import node_of
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.status import make_status
from holdfast.runtime.faults.injector import FaultSchedule, find_target, place_faults
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.wire.connection import Strangers
from holdfast.runtime.wire.message import Message
from holdfast.runtime.wire.messages import (
    Done,
    FromClient,
    InjectFault,
    InjectRequest,
    ProgressPlace,
    StatusReply,
    StatusRequest,
)

_LOG = logging.getLogger(__name__)


class AdminApi:
    def __init__(
        self,
        spec: CoordinatorSpec,
        chronicle: RunLog,
        dispatch: Dispatch,
        strangers: Strangers,
        states: Mapping[str, WorkerState],
        now_ms: int,
    ) -> None:
        """`states` are looked at, and kept up to date by others."""
        self._spec, self._chronicle, self._dispatch = spec, chronicle, dispatch
        self._strangers, self._states = strangers, states
        self.pids: dict[str, int] = {}
        self.places: dict[str, ProgressPlace] = {}
        seed = spec.config.job.seed
        faults = place_faults(spec.config.faults, spec.plans[0].plan, seed)
        self._faults = FaultSchedule(faults, seed, now_ms, chronicle.faults_before)
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

    def status(self) -> bytes:
        job = self._spec.config.job
        return msgspec.json.encode(
            make_status(
                job.name,
                self._spec.run_dir,
                job.steps,
                self._chronicle,
                self._states,
                self.pids,
                self.places,
                self._dispatch.nodes,
                self._strangers.num_refused,
            )
        )

    def inject_due(self, now_ms: int) -> None:
        """What the job file has for now."""
        for fault in self._faults.due(self._chronicle.ledger.next_step, now_ms):
            try:
                self.inject(fault)
            except HoldfastError as error:
                _LOG.warning("%s for %s was not injected: %s", fault.kind, fault.target, error)

    def inject(self, fault: Fault) -> str:
        """What was done."""
        past, step = self._chronicle.past, self._chronicle.ledger.next_step
        plan = past.plans[past.last.number] if past.last is not None else past.wanted
        target = "coordinator"
        if fault.kind != "COORDINATOR_LOSS":
            target = find_target(fault, plan, self._chance)
        self._chronicle.tell(
            [
                FaultInjected(
                    fault=fault.kind,
                    target=target,
                    step=step,
                    reason="on purpose: [[faults]] or inject",
                )
            ]
        )
        if fault.kind == "COORDINATOR_LOSS":
            os.kill(os.getpid(), signal.SIGKILL)
        placed = msgspec.structs.replace(fault, target=target)
        if not self._dispatch.to_node(node_of(target), InjectFault(fault=placed)):
            raise HoldfastError(f"{fault.kind}: the node of {target} is not connected")
        return f"{fault.kind} for {target}, {after_steps(step)}"
