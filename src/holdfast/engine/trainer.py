"""One worker's life: run steps under a plan, change to the next plan at a step boundary, go on.

While an epoch trains, the groups of the next one are made by a thread beside it. At the boundary
everybody of both plans moves state as the transition says, meets once, and goes on under the new
plan; groups whose members did not change live on. A worker that has no role in the current plan
waits for its own.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from holdfast.engine.agreement import Outcome
from holdfast.engine.compute import Computation
from holdfast.engine.data import DataSource
from holdfast.engine.exchange import Messages
from holdfast.engine.groups import Communicator, LiveGroup
from holdfast.engine.interpreter import Interpreter
from holdfast.engine.measure import Stopwatch, make_profile, probe_groups, unit_costs
from holdfast.engine.mesh import Mesh, left_over, make_mesh
from holdfast.engine.movement import carry_out, digest
from holdfast.engine.optimizer import OptimizerConfig, SliceOptimizer
from holdfast.engine.reduction import Reduction
from holdfast.engine.state import (
    KINDS,
    Slice,
    WorkerState,
    build_state,
    fresh_slices,
)
from holdfast.engine.tensor_parallel import LocalGroup, TensorGroup
from holdfast.engine.unit_module import Place, UnitModule
from holdfast.errors import HoldfastError
from holdfast.plan.holders import HolderMap
from holdfast.plan.lower import lower
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.reduce import plan_exchanges
from holdfast.plan.transition import Transition, plan_transition
from holdfast.plan.units import Box

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
_POLL_S = 0.02
_CLOSE_S = 1.0


class TrainerConfig(msgspec.Struct, frozen=True, kw_only=True):
    num_steps: int
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    backend: str = "gloo"
    host: str = "127.0.0.1"
    """The interface groups bind to."""
    timeout_ms: int = 120_000
    """How long one operation may take before its group counts as broken."""
    verify: bool = False
    """After every step, report checksums of everything that several workers hold."""
    optimizer: OptimizerConfig = OptimizerConfig()


class Model(Protocol):
    """What the engine asks of a model."""

    @property
    def width(self) -> int:
        """Of the hidden state between stages."""

    def build_unit(self, number: int, place: Place) -> UnitModule: ...

    def fill(self, out: Tensor, tensor: str, box: Box) -> None:
        """Write the initial values of a box."""


class StepReport(msgspec.Struct, frozen=True):
    step: int
    epoch: int
    seconds: float
    loss: float
    norm: float
    num_tokens: int
    learning_rate: float
    applied: bool
    checksums: dict[str, int] = {}


class ChangeReport(msgspec.Struct, frozen=True):
    """One worker's view of a change of plan."""

    step: int
    epoch: int
    stall_s: float
    bytes_received: int
    num_groups_kept: int
    num_groups_made: int


class Reporter(Protocol):
    def step_done(self, report: StepReport) -> None: ...

    def plan_changed(self, report: ChangeReport) -> None: ...

    def stop_requested(self) -> bool: ...


class Planned(msgspec.Struct, frozen=True):
    """A plan and the first step that runs under it."""

    at_step: int
    plan: Plan


def check_runnable(plan: Plan) -> None:
    """What the engine does not do yet is refused before anything starts."""
    for stage in plan.stages:
        for axis, degree in stage.axes:
            if axis != "tensor" and degree > 1:
                raise HoldfastError(
                    f"stage {stage.name} has {axis} degree {degree}; the engine runs only the "
                    f"tensor axis so far, so {axis} must be 1"
                )
    holders = HolderMap(plan)
    for worker in plan.workers:
        for tensor, boxes in holders.slices(worker).items():
            if len(boxes) > 1:
                raise HoldfastError(
                    f"{worker} would hold {tensor} in {len(boxes)} cuts, as its stages have "
                    f"different tensor degrees; the engine holds one, so make them equal"
                )


class _Epoch:
    """Everything that belongs to one plan on this worker."""

    def __init__(self, number: int, plan: Plan, mesh: Mesh) -> None:
        self.number, self.plan, self.mesh = number, plan, mesh
        self.state: WorkerState | None = None
        self.interpreter: Interpreter | None = None
        self.reduction: Reduction | None = None


class _Prepared(msgspec.Struct):
    mesh: Mesh
    transition: Transition
    meeting: LiveGroup


class _Builder(threading.Thread):
    """Makes the groups of the next epoch while the current one trains."""

    def __init__(self, trainer: "Trainer", before: _Epoch, plan: Plan) -> None:
        super().__init__(daemon=True, name=f"groups of epoch {before.number + 1}")
        self._trainer, self._before, self._plan = trainer, before, plan
        self._result: _Prepared | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._trainer.prepare(self._before, self._plan)
        except BaseException as error:
            self._error = error

    def result(self) -> _Prepared:
        self.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class Trainer:
    def __init__(
        self,
        worker: str,
        plans: Sequence[Planned],
        *,
        model: Model,
        data: DataSource,
        config: TrainerConfig,
        store: Any,
        reporter: Reporter,
    ) -> None:
        self.worker, self._plans, self._model, self._data = worker, list(plans), model, data
        self._config, self._store, self._reporter = config, store, reporter
        self._dtype = DTYPES[config.dtype]
        self._device = torch.device(config.device)
        self.communicator = Communicator(
            worker,
            store,
            backend=config.backend,
            host=config.host,
            timeout_ms=config.timeout_ms,
        )
        self.stopwatch = Stopwatch(self._device)
        self._num_updates = 0
        self._builder: _Builder | None = None
        self._closer: threading.Thread | None = None
        self._epoch = self._first_epoch()

    # Setting up.

    def _first_epoch(self) -> _Epoch:
        plan = self._plans[0].plan
        mesh = make_mesh(self.communicator, plan, 0)
        epoch = _Epoch(0, plan, mesh)
        state = self._build_state(plan)
        slices = fresh_slices(state)
        for piece in slices.values():
            self._model.fill(piece.parameter, piece.tensor, piece.box)
        self._set_up(epoch, state, slices)
        self._start_builder(epoch)
        return epoch

    def _build_state(self, plan: Plan) -> WorkerState:
        return build_state(plan, self.worker, self._model.build_unit, self._dtype, self._device)

    def _set_up(self, epoch: _Epoch, state: WorkerState, slices: dict[str, Slice]) -> None:
        """Bind modules, gradients, messages, reduction and optimizer of an epoch together."""
        state.attach(slices)
        epoch.state = state
        if not state.units:
            return
        plan, mesh = epoch.plan, epoch.mesh
        layout, lists = lower(plan)
        actions = lists[layout.lane_of_worker[self.worker]]
        groups: dict[str, TensorGroup] = {}
        for stage, position in plan.seats[self.worker]:
            groups[stage.name] = mesh.tensor_group(stage, position) or LocalGroup()
        order = [action.number for action in actions if action.kind == "REDUCE"]
        epoch.reduction = Reduction(state, mesh, list(dict.fromkeys(order)))
        epoch.interpreter = Interpreter(
            plan,
            actions,
            state=state,
            data=self._data,
            computation=Computation(
                state.units,
                groups,
                len(plan.units),
                recompute=plan.schedule.recompute,
                seed=self._config.seed,
                stopwatch=self.stopwatch,
            ),
            messages=Messages(
                plan,
                self.worker,
                mesh,
                actions,
                backend=self._config.backend,
                width=self._model.width,
                dtype=self._dtype,
                device=self._device,
            ),
            reduction=epoch.reduction,
            everyone=mesh.everyone(),
            optimizer=SliceOptimizer(self._config.optimizer, state, self._num_updates),
            clip_norm=self._config.optimizer.clip_limit,
            stopwatch=self.stopwatch,
        )

    def _start_builder(self, epoch: _Epoch) -> None:
        following = epoch.number + 1
        if self._change_after(epoch) >= 0:
            self._builder = _Builder(self, epoch, self._plans[following].plan)

    def _change_after(self, epoch: _Epoch) -> int:
        """The step at which the next plan begins; -1: the run ends under this one."""
        following = epoch.number + 1
        step = self._plans[following].at_step if following < len(self._plans) else -1
        return step if step < self._config.num_steps else -1

    def prepare(self, before: _Epoch, plan: Plan) -> _Prepared:
        """The groups of the next epoch, and one over everybody of both plans to move state by."""
        number = before.number + 1
        mesh = make_mesh(self.communicator, plan, number, before.mesh)
        members = tuple(dict.fromkeys((*before.plan.workers, *plan.workers)))
        transition = plan_transition(before.plan, plan)
        meeting = LiveGroup("meeting", (self.worker,), 0, None, self._config.backend)
        if self.worker in members:
            meeting = self.communicator.make("meeting", members, number)
        return _Prepared(mesh, transition, meeting)

    # Running.

    def run(self) -> int:
        """All steps; the number of the step that would come next."""
        step = self._plans[0].at_step
        while step < self._config.num_steps:
            change = self._change_after(self._epoch)
            if step == change:
                self._change(step)
                continue
            if self._epoch.interpreter is None:
                if not self._wait_for_role(change):
                    return step
                step = change
                continue
            outcome = self.run_step(step)
            step += 1
            if outcome.stop:
                return step
        return step

    def run_step(self, step: int) -> Outcome:
        """One step under the current plan, reported."""
        start = time.perf_counter()
        assert self._epoch.interpreter is not None
        outcome = self._epoch.interpreter.run_step(step, stop=self._reporter.stop_requested())
        self._num_updates += outcome.applied
        seconds = time.perf_counter() - start
        self.stopwatch.read()
        self._reporter.step_done(
            StepReport(
                step=step,
                epoch=self._epoch.number,
                seconds=seconds,
                loss=outcome.loss,
                norm=outcome.norm,
                num_tokens=outcome.num_tokens,
                learning_rate=self._config.optimizer.rate_at(step),
                applied=outcome.applied,
                checksums=self.checksums() if self._config.verify else {},
            )
        )
        return outcome

    def _wait_for_role(self, change: int) -> bool:
        """Without a role in this epoch: wait for the next one; False: the run ends first."""
        if change < 0:
            return False
        key = f"changed/{self._epoch.number + 1}"
        while not self._store.check([key]):
            if self._reporter.stop_requested():
                return False
            time.sleep(_POLL_S)
        return True

    def _change(self, step: int) -> None:
        """From the current plan to the next, between two steps."""
        start = time.perf_counter()
        before = self._epoch
        assert self._builder is not None
        if self.worker == before.plan.workers[0]:
            self._store.set(f"changed/{before.number + 1}", str(self._num_updates))
        prepared = self._builder.result()
        if self.worker not in before.plan.seats:
            self._num_updates = int(self._store.get(f"changed/{before.number + 1}"))
        after = _Epoch(before.number + 1, self._plans[before.number + 1].plan, prepared.mesh)
        state = self._build_state(after.plan)
        old = before.state.slices if before.state is not None else {}
        slices, num_bytes = carry_out(
            prepared.transition, self.worker, prepared.meeting, old, state
        )
        self._set_up(after, state, slices)
        if prepared.meeting.size > 1:
            # Whoever leaves keeps its state until everyone is here.
            prepared.meeting.all_reduce(torch.zeros(1))
        gone = left_over(before.mesh, after.mesh)
        self._epoch = after
        self._close_aside([*gone, prepared.meeting])
        self._start_builder(after)
        mesh = after.mesh
        self._reporter.plan_changed(
            ChangeReport(
                step=step,
                epoch=after.number,
                stall_s=time.perf_counter() - start,
                bytes_received=num_bytes,
                num_groups_kept=mesh.num_kept,
                num_groups_made=len(mesh.groups) - mesh.num_kept,
            )
        )

    def _close_aside(self, groups: list[LiveGroup]) -> None:
        """Closing takes gloo some 10 ms for every group: the next step does not wait for it."""
        if self._closer is not None:
            self._closer.join()
        close = self.communicator.close
        self._closer = threading.Thread(target=close, args=(groups,), daemon=True)
        self._closer.start()

    # What others want to know.

    @property
    def slices(self) -> dict[str, Slice]:
        return self._epoch.state.slices if self._epoch.state is not None else {}

    @property
    def plan(self) -> Plan:
        return self._epoch.plan

    @property
    def staging_bytes(self) -> int:
        return self._epoch.reduction.staging_bytes if self._epoch.reduction is not None else 0

    def profile(self) -> Profile:
        """What this worker has measured. Everybody must ask at the same step: links are probed."""
        medians = self.stopwatch.medians()
        probe = probe_groups(self._epoch.mesh, self.worker)
        costs = unit_costs(medians, self.plan)
        return make_profile(costs, medians, probe, self.plan, self.worker)

    def checksums(self) -> dict[str, int]:
        """Of every piece that several workers hold, parameters and moments: equal on all of
        them.
        """
        sums: dict[str, int] = {}
        for unit, exchanges in enumerate(plan_exchanges(self._epoch.plan)):
            for number, exchange in enumerate(exchanges):
                if self.worker in exchange.members and len(exchange.members) > 1:
                    parts = [
                        self.slices[piece.tensor].part(kind, piece.box).reshape(-1)
                        for piece in exchange.pieces
                        for kind in KINDS
                    ]
                    sums[f"{unit}/{number}"] = digest(torch.cat(parts))
        return sums

    def close(self) -> None:
        if self._builder is not None:
            # After a clean stop it ends by itself; after a failure its peers may never come.
            self._builder.join(_CLOSE_S)
        if self._closer is not None:
            self._closer.join()
        self.communicator.close_all()
