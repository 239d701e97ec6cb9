"""Everything that belongs to one plan on one worker, and how it is put together."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from holdfast.control.worker import WorkerMachine
from holdfast.control.worker_reports import StepTimes
from holdfast.detect.meter import StepMeter
from holdfast.engine.boundary import BoundaryTensor, PlanBoundaries
from holdfast.engine.completion import Completion, Losses, Slots
from holdfast.engine.compute import Computation
from holdfast.engine.data import DataSource
from holdfast.engine.emulated_device import EmulatedDevice, EmulatedPace
from holdfast.engine.emulation import Emulation
from holdfast.engine.evaluation import EvalPlan, Evaluation
from holdfast.engine.exchange import Messages
from holdfast.engine.interpreter import (
    EpochParts,
    Hooks,
    Interpreter,
    StepContext,
    loss_stages,
)
from holdfast.engine.measure import Stopwatch
from holdfast.engine.mesh import Mesh
from holdfast.engine.movement import digest
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.reduction import Reduction
from holdfast.engine.shard_plan import plan_gathers, plan_scatters
from holdfast.engine.sharding import Gathers
from holdfast.engine.state import Slice, TensorState, build_state, fresh_slices, pack
from holdfast.engine.step_times import step_times, step_workloads
from holdfast.engine.tensor_parallel import LocalGroup, TensorGroup
from holdfast.engine.unit_module import UnitModule, UnitPlacement
from holdfast.engine.warm_up import warm_up
from holdfast.engine.whole_tensors import whole_tensors
from holdfast.plan.action_lists import lower
from holdfast.plan.actions import SHARDING, Action
from holdfast.plan.exchanges import plan_exchanges, slot_adders
from holdfast.plan.plan import Plan
from holdfast.plan.units import Box

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class TrainerConfig(msgspec.Struct, frozen=True, kw_only=True):
    num_steps: int
    seed: int = 0
    dtype: str = "float32"
    """Of parameters as they are kept, and of gradients."""
    compute_dtype: str = ""
    """Of what units compute with; empty = the same."""
    reduce_dtype: str = ""
    """Of gradients while they are summed over workers; empty = the same."""
    device: str = "cpu"
    compile: bool = False
    """Units that can be are compiled, in the warm-up."""
    backend: str = "gloo"
    host: str = "127.0.0.1"
    """The interface groups bind to."""
    timeout_ms: int = 120_000
    """How long one operation may take before its group counts as broken."""
    verify: bool = False
    """After every step, report checksums of everything that several workers hold."""
    feed_delay_ms: int = 0
    """For experiments: every state given to a joiner takes this much longer."""
    resume: str = ""
    """A folder of checkpoints; a start at a later step than 0 takes its state from there."""
    optimizer: OptimizerConfig = OptimizerConfig()
    emulation: Emulation | None = None
    """Devices and links of another kind than those there are."""


class Model(Protocol):
    """What the engine asks of a model."""

    def boundary(
        self, unit: int, rows: int, length: int, dtype: torch.dtype
    ) -> tuple[BoundaryTensor, ...]:
        """What a unit hands to the next one, for a micro-batch of this shape."""

    def build_unit(self, number: int, place: UnitPlacement) -> UnitModule: ...

    def fill(self, out: Tensor, tensor: str, box: Box) -> None:
        """Write the initial values of a box."""


class LiveEpoch:
    """One plan as this worker runs it. Without a seat there is no interpreter."""

    def __init__(self, number: int, plan: Plan, mesh: Mesh) -> None:
        self.number, self.plan, self.mesh = number, plan, mesh
        self.state: TensorState | None = None
        self.interpreter: Interpreter | None = None
        self.reduction: Reduction | None = None
        self._losses: Losses = {}

    @property
    def slices(self) -> dict[str, Slice]:
        return self.state.slices if self.state is not None else {}

    @property
    def losses(self) -> Losses:
        """Of the step in flight, those that are known here."""
        return self._losses if self.interpreter is None else self.interpreter.losses

    def keep_losses(self, losses: Losses) -> None:
        """Those that count in the step that is completed."""
        self._losses = losses


def checksums(worker: str, epoch: LiveEpoch) -> dict[str, int]:
    """Of every piece that several workers hold, all kinds of state: equal on all of them."""
    sums: dict[str, int] = {}
    for unit, exchanges in enumerate(plan_exchanges(epoch.plan)):
        for number, exchange in enumerate(exchanges):
            if worker in exchange.members and len(exchange.members) > 1:
                parts = [
                    part
                    for piece in exchange.pieces
                    for part in epoch.slices[piece.tensor].parts(piece.box)
                ]
                sums[f"{unit}/{number}"] = digest(pack(parts))
    return sums


class EpochBuilder:
    """Builds epochs from the parts that stay the same over all of them."""

    def __init__(
        self,
        machine: WorkerMachine,
        *,
        model: Model,
        data: DataSource,
        config: TrainerConfig,
        hooks: Hooks,
        emulated: EmulatedDevice | None = None,
        evaluated: EvalPlan | None = None,
    ) -> None:
        self._emulated, self._evaluated = emulated, evaluated
        self.worker = machine.position.member.name
        self.model, self._data, self._config = model, data, config
        self.dtype = DTYPES[config.compute_dtype or config.dtype]
        self.device = torch.device(config.device)
        self.stopwatch, self.meter = Stopwatch(self.device), StepMeter(self.worker)
        self._context = StepContext(
            machine, data, self.stopwatch, config.optimizer.clip_limit, hooks
        )
        self._lowered: tuple[Plan | None, list[Action]] = (None, [])

    def build_state(self, plan: Plan) -> TensorState:
        """Modules and buffers, without values."""
        return build_state(plan, self.worker, self.model.build_unit, self.dtype, self.device)

    def new_state(self, plan: Plan) -> tuple[TensorState, dict[str, Slice]]:
        """The same with slices for them, to be filled."""
        state = self.build_state(plan)
        return state, fresh_slices(state)

    def bind(
        self, epoch: LiveEpoch, state: TensorState, slices: dict[str, Slice], num_updates: int
    ) -> None:
        """Give an epoch its state, and build what it needs to run steps."""
        state.attach(slices)
        epoch.state = state
        if state.units:
            self.build(epoch, num_updates)

    def build(self, epoch: LiveEpoch, num_updates: int) -> None:
        """Gradients, messages, reduction and optimizer around the state of an epoch."""
        assert epoch.state is not None
        slots = Slots(epoch.state, epoch.plan, epoch.plan.workers)
        self._build(epoch, self._actions(epoch.plan), slots, num_updates)

    def build_completion(
        self, epoch: LiveEpoch, completion: Completion, slots: Slots, num_updates: int
    ) -> None:
        """The same for the rest of a broken step; `build` follows it."""
        share, whole = completion.share, self._actions(epoch.plan)
        # Shard ranks run different numbers of micro-batches again: all units stay gathered.
        asked = dict.fromkeys(action for action in whole if action.kind == "UNSHARD")
        actions = [
            *asked,
            *(
                action
                for action in whole
                if action.kind in ("REDUCE", "AGREE", "STEP")
                or (action.kind not in SHARDING and action.number in share.micro_batches)
            ),
        ]
        self._build(epoch, actions, slots, num_updates, completion)

    def begin_step(self) -> None:
        """What was measured of a step that was broken off does not count."""
        self.stopwatch.begin_step()
        self.meter.report()

    def take_times(self, plan: Plan, step: int) -> StepTimes:
        """What was measured in the step that has ended."""
        return step_times(
            self.stopwatch.take_step(),
            self.meter.report()[1],
            workloads=step_workloads(plan, self.worker, self._data, step),
            device=self.device,
            is_emulated=self._emulated is not None,
        )

    def prefetch(self, plan: Plan) -> None:
        """Work out a plan's actions, and who sums what, before other workers wait for it."""
        self._lowered = (plan, self._lower(plan))
        slot_adders(plan)

    def warm_up(self, plan: Plan, state: TensorState) -> None:
        """What a first step takes longer than others is done before other workers wait for it."""
        self.prefetch(plan)
        if state.units:
            boundaries = PlanBoundaries(self.model, plan, self.dtype)
            warm_up(plan, state, self._data, boundaries, compiling=self._compiles(plan))

    def _compiles(self, plan: Plan) -> bool:
        """What is compiled has one backward pass: half of one would cost as much as the whole."""
        kinds = {action.kind for action in self._actions(plan)}
        return self._config.compile and not kinds & {"I", "W"}

    def _actions(self, plan: Plan) -> list[Action]:
        known, actions = self._lowered
        return actions if known is plan else self._lower(plan)

    def _lower(self, plan: Plan) -> list[Action]:
        layout, lists = lower(plan)
        return list(lists[layout.lane_of_worker[self.worker]])

    def _build(
        self,
        epoch: LiveEpoch,
        actions: list[Action],
        slots: Slots,
        num_updates: int,
        completion: Completion | None = None,
    ) -> None:
        plan, mesh, state = epoch.plan, epoch.mesh, epoch.state
        assert state is not None
        groups = self._tensor_groups(plan, mesh)
        order = [action.number for action in actions if action.kind == "REDUCE"]
        epoch.reduction = Reduction(
            state,
            mesh,
            list(dict.fromkeys(order)),
            slots,
            reduced=self._context.machine.position.record.reduced,
            completion=completion,
            meter=self.meter,
            scatters=plan_scatters(state, mesh),
            dtype=DTYPES[self._config.reduce_dtype or self._config.dtype],
        )
        gathers = plan_gathers(state, mesh, actions)
        parts = EpochParts(
            epoch.number,
            plan,
            actions,
            state,
            slots,
            self._computation(plan, state, groups, gathers),
            self._messages(plan, mesh, actions),
            epoch.reduction,
            SliceOptimizer(
                self._config.optimizer, state, num_updates, whole_tensors(state, groups)
            ),
            mesh.all_workers(self.worker),
            mesh.log,
            completion,
            gathers,
            self._evaluation(plan, mesh, state, groups),
        )
        epoch.interpreter = Interpreter(parts, self._context)

    def _tensor_groups(self, plan: Plan, mesh: Mesh) -> dict[str, TensorGroup]:
        """Of every stage that this worker fills."""
        return {
            stage.name: mesh.tensor_group(stage, position) or LocalGroup()
            for stage, position in plan.seats[self.worker]
        }

    def _computation(
        self,
        plan: Plan,
        state: TensorState,
        groups: dict[str, TensorGroup],
        gathers: Gathers | None,
    ) -> Computation:
        return Computation(
            state.units,
            groups,
            len(plan.units),
            recompute=plan.schedule.recompute,
            seed=self._config.seed,
            stopwatch=self.stopwatch,
            pace=EmulatedPace(self._emulated, plan, groups) if self._emulated else None,
            gathers=gathers,
            compiled=self._compiles(plan),
        )

    def _evaluation(
        self, plan: Plan, mesh: Mesh, state: TensorState, groups: dict[str, TensorGroup]
    ) -> Evaluation | None:
        if self._evaluated is None:
            return None
        return Evaluation(
            plan,
            self.worker,
            self._evaluated,
            units=state.units,
            groups=groups,
            gathers=plan_gathers(state, mesh, ()),
            loss_stages=loss_stages(plan, self.worker),
            messages=lambda actions: self._messages(plan, mesh, actions, is_metered=False),
            device=self.device,
        )

    def _messages(
        self, plan: Plan, mesh: Mesh, actions: Sequence[Action], *, is_metered: bool = True
    ) -> Messages:
        return Messages(
            plan,
            self.worker,
            mesh,
            actions,
            backend=self._config.backend,
            boundaries=PlanBoundaries(self.model, plan, self.dtype),
            device=self.device,
            meter=self.meter if is_metered else None,
        )


def same_seats(worker: str, before: Plan, after: Plan) -> bool:
    """Does a worker hold the same slices for the same units in both plans?"""

    def seats(plan: Plan) -> list[tuple[int, int, tuple[tuple[str, int], ...], int]]:
        found = plan.seats.get(worker, ())
        return sorted((stage.first, stage.stop, stage.axes, at) for stage, at in found)

    return bool(seats(before)) and seats(before) == seats(after)
