"""Everything that belongs to one plan on one worker, and how it is put together."""

from typing import Protocol

import msgspec
import torch
from torch import Tensor

from holdfast.control.worker import WorkerMachine
from holdfast.engine.completion import Completion, Losses, Slots
from holdfast.engine.compute import Computation
from holdfast.engine.data import DataSource
from holdfast.engine.exchange import Messages
from holdfast.engine.interpreter import EpochParts, Hooks, Interpreter, StepContext
from holdfast.engine.measure import Stopwatch
from holdfast.engine.mesh import Mesh
from holdfast.engine.movement import digest
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.reduction import Reduction
from holdfast.engine.state import KINDS, Slice, TensorState, build_state
from holdfast.engine.tensor_parallel import LocalGroup, TensorGroup
from holdfast.engine.unit_module import UnitModule, UnitPlacement
from holdfast.engine.warm_up import warm_up
from holdfast.plan.action_lists import lower
from holdfast.plan.actions import Action
from holdfast.plan.exchanges import plan_exchanges
from holdfast.plan.plan import Plan
from holdfast.plan.units import Box

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


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
    feed_delay_ms: int = 0
    """For experiments: every state given to a joiner takes this much longer."""
    resume: str = ""
    """A folder of checkpoints; a start at a later step than 0 takes its state from there."""
    optimizer: OptimizerConfig = OptimizerConfig()


class Model(Protocol):
    """What the engine asks of a model."""

    @property
    def width(self) -> int:
        """Of the hidden state between stages."""

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
    """Of every piece that several workers hold, parameters and moments: equal on all of them."""
    sums: dict[str, int] = {}
    for unit, exchanges in enumerate(plan_exchanges(epoch.plan)):
        for number, exchange in enumerate(exchanges):
            if worker in exchange.members and len(exchange.members) > 1:
                parts = [
                    epoch.slices[piece.tensor].part(kind, piece.box).reshape(-1)
                    for piece in exchange.pieces
                    for kind in KINDS
                ]
                sums[f"{unit}/{number}"] = digest(torch.cat(parts))
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
    ) -> None:
        self.worker = machine.position.member.name
        self.model, self._data, self._config = model, data, config
        self.dtype, self.device = DTYPES[config.dtype], torch.device(config.device)
        self.stopwatch = Stopwatch(self.device)
        self._context = StepContext(
            machine, data, self.stopwatch, config.optimizer.clip_limit, hooks
        )
        self._lowered: tuple[Plan | None, list[Action]] = (None, [])

    def build_state(self, plan: Plan) -> TensorState:
        """Modules and buffers, without values."""
        return build_state(plan, self.worker, self.model.build_unit, self.dtype, self.device)

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
        share = completion.share
        actions = [
            action
            for action in self._actions(epoch.plan)
            if action.kind in ("REDUCE", "AGREE", "STEP") or action.number in share.micro_batches
        ]
        self._build(epoch, actions, slots, num_updates, completion)

    def prefetch(self, plan: Plan) -> None:
        """Work out a plan's actions before they are needed."""
        self._lowered = (plan, self._lower(plan))

    def warm_up(self, plan: Plan, state: TensorState) -> None:
        """What a first step takes longer than others is done before other workers wait for it."""
        self.prefetch(plan)
        if state.units:
            warm_up(plan, state, self._data, self.model.width)

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
        order = [action.number for action in actions if action.kind == "REDUCE"]
        epoch.reduction = Reduction(
            state,
            mesh,
            list(dict.fromkeys(order)),
            slots,
            reduced=self._context.machine.position.record.reduced,
            completion=completion,
        )
        parts = EpochParts(
            epoch.number,
            plan,
            actions,
            state,
            slots,
            self._computation(plan, mesh, state),
            self._messages(plan, mesh, actions),
            epoch.reduction,
            SliceOptimizer(self._config.optimizer, state, num_updates),
            mesh.everyone(),
            mesh.log,
            completion,
        )
        epoch.interpreter = Interpreter(parts, self._context)

    def _computation(self, plan: Plan, mesh: Mesh, state: TensorState) -> Computation:
        groups: dict[str, TensorGroup] = {}
        for stage, position in plan.seats[self.worker]:
            groups[stage.name] = mesh.tensor_group(stage, position) or LocalGroup()
        return Computation(
            state.units,
            groups,
            len(plan.units),
            recompute=plan.schedule.recompute,
            seed=self._config.seed,
            stopwatch=self.stopwatch,
        )

    def _messages(self, plan: Plan, mesh: Mesh, actions: list[Action]) -> Messages:
        return Messages(
            plan,
            self.worker,
            mesh,
            actions,
            backend=self._config.backend,
            width=self.model.width,
            dtype=self.dtype,
            device=self.device,
        )


def same_seats(worker: str, before: Plan, after: Plan) -> bool:
    """Does a worker hold the same slices for the same units in both plans?"""

    def seats(plan: Plan) -> list[tuple[int, int, tuple[tuple[str, int], ...], int]]:
        found = plan.seats.get(worker, ())
        return sorted((stage.first, stage.stop, stage.axes, at) for stage, at in found)

    return bool(seats(before)) and seats(before) == seats(after)
