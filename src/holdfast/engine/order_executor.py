"""Carrying out orders: groups, state and the step in flight, with tensors.

start     groups and initial values
restore   groups and a snapshot
recover   groups that live on, and new ones, around the state that is here; the rest of the broken
          step
left out  nothing
"""

import time
from pathlib import Path

import msgspec

from holdfast.control.order import FullPlan, Order, Share
from holdfast.control.report import Outcome
from holdfast.control.worker_commands import CompleteStep, Enter
from holdfast.control.worker_position import share_of
from holdfast.control.worker_reports import RecoveryReport, RestoreReport
from holdfast.engine.background import Background
from holdfast.engine.completion import Completion, Slots
from holdfast.engine.epoch import LiveEpoch
from holdfast.engine.group_keys import GroupKey
from holdfast.engine.mesh import Mesh
from holdfast.engine.state import Slice, TensorState, fresh_slices
from holdfast.engine.worker_parts import WorkerParts
from holdfast.errors import HoldfastError, invariant
from holdfast.plan.exchanges import plan_exchanges, restrict
from holdfast.plan.plan import Plan
from holdfast.plan.state import PARAMETER
from holdfast.plan.workers import node_of
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.job_state import load_checkpoint, load_snapshot


class _UnderWay(msgspec.Struct):
    """What there is of the order that is being carried out."""

    plan: Plan
    building: Background[Mesh]
    began_at: float
    state: TensorState | None = None
    slices: dict[str, Slice] = {}
    rolled_forward: bool = False
    restored: RestoreReport | None = None
    recovered: Share | None = None
    """Of a recovery that is over when it is entered."""


class OrderExecutor:
    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._order: _UnderWay | None = None

    def _under_way(self) -> _UnderWay:
        assert self._order is not None
        return self._order

    def build_groups(self, order: Order) -> None:
        parts = self._parts
        plan = parts.learn_plan(order)
        parts.groups.renew(order.share.living if order.share is not None else None)
        more = self._completing_groups(order.share, plan) if order.share is not None else []
        building = parts.groups.build(plan, order.number, more)
        self._order = _UnderWay(plan, building, time.perf_counter())

    def _completing_groups(self, share: Share, plan: Plan) -> list[GroupKey]:
        """The step in flight is exchanged as its own plan had it, among those who are left."""
        base = restrict(plan_exchanges(self._parts.plans[share.base]), plan.workers)
        members = [exchange.members for found in base for exchange in found]
        return [("reduce", who) for who in members if len(who) > 1 and self._parts.worker in who]

    # State

    def make_state(self, order: Order) -> None:
        """With the initial values, which any worker can make, or those of an earlier run."""
        parts = self._parts
        slices = self._new_slices()
        parts.num_updates = 0
        if parts.config.resume and order.at_step:
            root = Path(parts.config.resume)
            parts.num_updates = load_checkpoint(slices, root, order.at_step).num_updates
        else:
            for piece in slices.values():
                parts.builder.model.fill(piece.whole(PARAMETER), piece.tensor, piece.box)

    def load_state(self, order: Order) -> None:
        parts = self._parts
        if parts.snapshots is None:
            raise HoldfastError(f"order {order.number}: there are no snapshots to restore from")
        options, began_at = parts.snapshots.options, self._under_way().began_at
        slices = self._new_slices()
        loaded = load_snapshot(
            slices,
            Version(order.version, order.agreed_in),
            job=options.job,
            node=node_of(parts.worker),
            checkpoints=options.checkpoints,
            folder=Path(options.folder),
            others=parts.snapshots.others,
        )
        parts.num_updates = loaded.num_updates
        self._under_way().restored = RestoreReport(
            step=order.version,
            epoch=order.number,
            stall_s=0.0,
            load_s=time.perf_counter() - began_at,
            bytes_by_origin=loaded.bytes_by_origin,
            reasons=loaded.reasons,
        )

    def _new_slices(self) -> dict[str, Slice]:
        found = self._under_way()
        found.state = self._parts.builder.build_state(found.plan)
        found.slices = fresh_slices(found.state)
        return found.slices

    def roll_forward(self, outcome: Outcome) -> None:
        self._parts.roll_forward(outcome)
        self._under_way().rolled_forward = True

    # Entering

    def enter(self, command: Enter) -> None:
        parts, found, order = self._parts, self._under_way(), command.order
        epoch = LiveEpoch(order.number, found.plan, parts.groups.wait_for(found.building))
        since = None
        if order.kind == "recover":
            self._carry_over(share_of(order), epoch)
            if not command.completes:
                parts.builder.build(epoch, parts.num_updates)
        else:
            assert found.state is not None
            parts.builder.bind(epoch, found.state, found.slices, parts.num_updates)
            self._warm_up_device(epoch)
        if order.kind == "restore":
            since = Version(order.version, order.agreed_in)
        parts.enter(epoch, since)
        if order.kind == "recover" and not command.completes:
            found.recovered = share_of(order)

    def _warm_up_device(self, epoch: LiveEpoch) -> None:
        """The first launch of a kernel loads it, and that waits for all that runs on the device:
        also for a message that comes only after this very launch. Nor is anything compiled later.
        """
        builder = self._parts.builder
        is_needed = builder.device.type == "cuda" or self._parts.config.compile
        if is_needed and epoch.state is not None:
            builder.warm_up(epoch.plan, epoch.state)

    def _carry_over(self, share: Share, epoch: LiveEpoch) -> None:
        """The state that is here, or that from before a change that is reverted."""
        parts = self._parts
        old = parts.before if share.revert else parts.epoch
        invariant(
            old is not None and old.state is not None,
            f"{parts.worker} has no state for step {share.step}",
        )
        assert old is not None
        assert old.state is not None
        epoch.state = old.state.under(epoch.plan)
        epoch.keep_losses({number: old.losses[number] for number in share.losses})

    def say_entered(self) -> None:
        """Says how long a restore took, to the moment its epoch was entered, and how long a
        recovery did that has no step to complete.
        """
        parts, report = self._parts, self._order.restored if self._order is not None else None
        if report is not None:
            began_at = parts.broken_at or self._under_way().began_at
            stall_s, parts.broken_at = time.perf_counter() - began_at, 0.0
            self._under_way().restored = None
            parts.link.restored(msgspec.structs.replace(report, stall_s=stall_s))
        if self._order is not None and self._order.recovered is not None:
            self._recovered(self._order.recovered)

    def leave_epoch(self, order: Order) -> None:
        """No seat in the new plan; the process stays for the next one."""
        parts = self._parts
        parts.groups.renew()
        epoch = None
        if isinstance(order.plan, FullPlan):
            plan = parts.learn_plan(order)
            epoch = LiveEpoch(order.number, plan, Mesh(plan, order.number, {}, 0))
        parts.enter(epoch)
        parts.broken_at = 0.0

    # The step in flight

    def complete_step(self, command: CompleteStep) -> None:
        """What was found of it here counts, as the share says."""
        parts, share, epoch = self._parts, command.share, self._parts.live_epoch()
        assert epoch.state is not None
        slots = Slots(epoch.state, parts.plans[share.base], epoch.plan.workers)
        completion = Completion(share, slots, epoch.state, command.results, epoch.losses)
        parts.builder.build_completion(epoch, completion, slots, parts.num_updates)
        parts.run_step(share.step, stop=command.stop)
        parts.builder.build(epoch, parts.num_updates)
        parts.enter(epoch)
        self._recovered(share)

    def _recovered(self, share: Share) -> None:
        parts, self._under_way().recovered = self._parts, None
        stall_s = max(0.0, parts.ended_at - parts.broken_at) if parts.broken_at else 0.0
        parts.broken_at = 0.0
        kept, made = parts.live_epoch().mesh.count(parts.worker)
        parts.link.recovered(
            RecoveryReport(
                step=share.step,
                epoch=parts.position.epoch,
                stall_s=stall_s,
                num_micro_batches=len(share.micro_batches),
                rolled_forward=self._under_way().rolled_forward,
                num_groups_kept=kept,
                num_groups_made=made,
            )
        )
