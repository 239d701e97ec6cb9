"""Going over from one plan to the next: as a worker that trains, and as one that joins.

A worker with a seat prepares the change while it trains (`change`), and goes over when the
agreement of a step says that all are ready. One that joins is fed until then, or gets what is moved
at the switch; it takes part from the next step on.
"""

import time
from typing import Any, Protocol

import msgspec
import torch

from holdfast.control.order import Order
from holdfast.control.report import Outcome
from holdfast.control.worker_commands import ChangeFailed, Entered
from holdfast.control.worker_reports import ChangeReport
from holdfast.engine.background import Background
from holdfast.engine.bulk import Memory
from holdfast.engine.catch_up import CatchUp
from holdfast.engine.change import Giving, PendingChange, join_links, prepare_change
from holdfast.engine.communicator import store_of
from holdfast.engine.epoch import LiveEpoch
from holdfast.engine.mesh import Mesh, left_over
from holdfast.engine.movement import carry_out
from holdfast.engine.state import fresh_slices
from holdfast.engine.worker_parts import WorkerParts
from holdfast.errors import InternalError
from holdfast.plan.feeding import given_pieces
from holdfast.plan.plan import Plan


class ChangeExecutor:
    def __init__(self, parts: WorkerParts, store: Any) -> None:
        self._parts, self._store = parts, store
        self._pending: PendingChange | None = None
        self._join: _Join | None = None
        self._report: ChangeReport | None = None

    # Beside the training

    def prepare(self, order: Order) -> None:
        parts, epoch = self._parts, self._parts.live_epoch()
        assert epoch.state is not None
        plan = parts.learn_plan(order)
        giving = Giving(
            epoch.state,
            parts.hooks.state_lock,
            lambda: (parts.position.version, parts.num_updates),
            parts.config.feed_delay_ms,
        )
        if parts.worker in plan.seats:
            Background(f"actions of epoch {order.number}", lambda: parts.prefetch(plan))
        communicator, maker = parts.groups.communicator, parts.builder
        self._pending = prepare_change(order, plan, epoch, communicator, maker, giving)

    def is_prepared(self, step: int) -> bool:
        """At the last moment before the agreement of a step."""
        return self._pending is not None and self._pending.is_prepared(step)

    def failure(self) -> ChangeFailed | None:
        """Why the change that is being prepared cannot be."""
        reason = self._pending.failure() if self._pending is not None else ""
        if not reason or self._pending is None:
            return None
        return ChangeFailed(self._pending.order.number, reason, int(time.monotonic() * 1000))

    def give_result(self, outcome: Outcome) -> None:
        """A step has been agreed, and its gradients are still as they were reduced."""
        if self._pending is not None:
            for feeder in self._pending.feeders:
                feeder.give_result(outcome)

    def drop(self, reason: str) -> None:
        for under_way in (self._pending, self._join):
            if under_way is not None:
                under_way.close(reason)
        self._pending = self._join = None

    # The switch

    def switch(self, order: Order) -> None:
        """Between two steps."""
        start = time.perf_counter()
        parts, change, before = self._parts, self._pending, self._parts.live_epoch()
        assert change is not None
        version = parts.position.version
        parts.hooks.phase("switch", version)
        if parts.worker == before.plan.workers[0]:
            store = store_of(self._store, before.plan.workers)
            store.set(f"changed/{order.number}", f"{version} {parts.num_updates}")
        for feeder in change.feeders:
            feeder.switch(version - 1)
        self._pending = None
        self._report = _go_over(parts, change, version, start)

    def say_entered(self) -> None:
        """Says what the change took; nothing, if the order was none."""
        report, self._report = self._report, None
        if report is not None:
            self._parts.hooks.phase("entered", report.step)
            self._parts.link.plan_changed(report)

    # Joining

    def join(self, order: Order) -> None:
        plan = self._parts.learn_plan(order)
        is_fed = any(joiner.name == self._parts.worker for joiner in order.joiners)
        if is_fed:
            self._join = _FedJoin(self._parts, order, plan)
        else:
            self._join = _UnfedJoin(self._parts, order, plan, self._store)

    @property
    def is_joining(self) -> bool:
        return self._join is not None

    def go_on_joining(self, timeout_s: float) -> Entered | None:
        """Wait a little; not None: the switch is done, and this worker with it."""
        assert self._join is not None
        self._parts.groups.check()
        found = self._join.go_on(timeout_s)
        if found is None:
            return None
        self._join = None
        entered, self._report = found
        return entered


class _Join(Protocol):
    def go_on(self, timeout_s: float) -> tuple[Entered, ChangeReport] | None: ...

    def close(self, why: str) -> None: ...


class _FedJoin:
    """With state that sources give while they train."""

    def __init__(self, parts: WorkerParts, order: Order, plan: Plan) -> None:
        self._parts, self._order, self._plan = parts, order, plan
        self._start = time.perf_counter()
        parts.groups.renew_if_woken()
        self._linking = join_links(parts.groups.communicator, order, parts.worker)
        beside = parts.groups.communicator.connects_beside_training
        self._building = self._build() if beside else None
        self._state = parts.builder.build_state(plan)
        self._state.attach(fresh_slices(self._state))
        parts.builder.warm_up(plan, self._state)
        self._catch_up: CatchUp | None = None

    def go_on(self, timeout_s: float) -> tuple[Entered, ChangeReport] | None:
        catch_up = self._catch_up or self._begin(timeout_s)
        if catch_up is None or not catch_up.wait(timeout_s):
            return None
        parts, number = self._parts, self._order.number
        mesh = parts.groups.wait_for(self._building or self._build())
        epoch = LiveEpoch(number, self._plan, mesh)
        parts.num_updates = catch_up.num_updates
        parts.builder.bind(epoch, self._state, self._state.slices, parts.num_updates)
        parts.before = None
        parts.enter(epoch)
        parts.groups.close_aside(list(self._linking.result().values()))
        report = msgspec.structs.replace(
            _report(epoch, catch_up.version, catch_up.bytes_received, self._start),
            bytes_from_memory=catch_up.bytes_from_memory,
        )
        return Entered(number, catch_up.version, catch_up.outcome), report

    def _build(self) -> Background[Mesh]:
        return self._parts.groups.build(self._plan, self._order.number, warm=True)

    def _begin(self, timeout_s: float) -> CatchUp | None:
        self._linking.join(timeout_s)
        if self._linking.is_alive():
            return None
        links, optimizer = self._linking.result(), self._parts.config.optimizer
        self._parts.hooks.phase("join", 0)
        joiner = next(j for j in self._order.joiners if j.name == self._parts.worker)
        pieces = given_pieces(self._plan, joiner.name, joiner.sources)
        snapshots = self._parts.snapshots
        memory = None
        if snapshots is not None:
            memory = Memory(snapshots.options, joiner.name, snapshots.others)
        self._catch_up = CatchUp(self._state, links, pieces, optimizer, self._order.lineage, memory)
        return self._catch_up

    def close(self, why: str) -> None:
        """The threads that are fed end with their links."""
        links = list(self._linking.result().values()) if self._linking.is_done else []

        def close() -> None:
            for link in links:
                link.wake(why)

        if links:
            Background("giving up feeds", close)


class _UnfedJoin:
    """With state that is moved in one go when the others go over, at the very step of a script: a
    coordinator gives sources to all who join.
    """

    def __init__(self, parts: WorkerParts, order: Order, plan: Plan, store: Any) -> None:
        if parts.epoch is None:
            raise InternalError(f"{parts.worker} joins without a source, and knows no plan")
        self._parts, self._key = parts, f"changed/{order.number}"
        self._store = store_of(store, parts.epoch.plan.workers)
        communicator, maker = parts.groups.communicator, parts.builder
        self._change = prepare_change(order, plan, parts.epoch, communicator, maker)

    def go_on(self, timeout_s: float) -> tuple[Entered, ChangeReport] | None:
        if not self._store.check([self._key]):
            return None
        start, parts = time.perf_counter(), self._parts
        version, parts.num_updates = map(int, self._store.get(self._key).split())
        report = _go_over(parts, self._change, version, start)
        return Entered(self._change.order.number, version), report

    def close(self, why: str) -> None:
        self._change.close(why)


def _go_over(parts: WorkerParts, change: PendingChange, version: int, start: float) -> ChangeReport:
    """From the epoch that was to the one that is prepared; the one before is kept."""
    before = parts.live_epoch()
    mesh = parts.groups.wait_for(change.building())
    meeting = parts.groups.wait_for(change.meeting)
    after = LiveEpoch(change.order.number, change.plan, mesh)
    num_bytes = 0
    made = change.new_state()
    if made is None:
        assert before.state is not None
        after.state = before.state.under(after.plan)
        parts.builder.build(after, parts.num_updates)
    else:
        state, fresh, scratch = made
        slices, num_bytes = carry_out(
            change.transition, parts.worker, meeting, before.slices, fresh, scratch
        )
        parts.builder.bind(after, state, slices, parts.num_updates)
    if meeting is not None and meeting.size > 1:
        # A worker that leaves keeps its state until all are here.
        meeting.all_reduce(torch.zeros(1))
    parts.before = before
    parts.enter(after)
    gone = left_over(before.mesh, mesh)
    parts.groups.close_aside([*gone, *([meeting] if meeting else [])])
    return _report(after, version, num_bytes, start)


def _report(epoch: LiveEpoch, version: int, num_bytes: int, start: float) -> ChangeReport:
    return ChangeReport(
        step=version,
        epoch=epoch.number,
        stall_s=time.perf_counter() - start,
        bytes_received=num_bytes,
        num_groups_kept=epoch.mesh.num_kept,
        num_groups_made=len(epoch.mesh.groups) - epoch.mesh.num_kept,
    )
