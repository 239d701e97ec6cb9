"""A trainer that goes over from one plan to the next.

Whoever has a role prepares the change while it trains (`change`), and goes over when the agreement
of a step says that everybody is ready. Whoever joins is fed until then, or gets what is moved at
the switch; it takes part from the next step on.

The epoch before is kept until a step was agreed on in the new one: until then the change may still
turn out to be void.
"""

import time

import torch

from holdfast.control.order import Order
from holdfast.control.worker_reports import ChangeReport
from holdfast.engine.agreement import Agreed
from holdfast.engine.catch_up import CatchUp
from holdfast.engine.change import PendingChange, join_links, prepare_change
from holdfast.engine.core import POLL_S, TrainerCore
from holdfast.engine.epoch import LiveEpoch, same_seats
from holdfast.engine.mesh import left_over
from holdfast.engine.movement import carry_out
from holdfast.engine.state import fresh_slices
from holdfast.errors import InternalError
from holdfast.plan.plan import Plan


class ChangingTrainer(TrainerCore):
    def run_step(self) -> Agreed:
        """One step, and the change to the next plan if it is agreed on."""
        agreed = super().run_step()
        if agreed.switch and not agreed.stop:
            self._go_over()
        return agreed

    # From a role to the next.

    def _go_over(self) -> None:
        """From the current plan to the next, between two steps."""
        start = time.perf_counter()
        change, before = self._change, self._epoch
        assert change is not None
        assert before is not None
        number = change.order.number
        self._hooks.phase("switch", self.ledger.version)
        if self.worker == before.plan.workers[0]:
            told = f"{self.ledger.version} {self._num_updates}"
            self._store.set(f"changed/{number}", told)
        for feeder in change.feeders:
            feeder.switch(self.ledger.version - 1)
        self._change = None
        self._enter_change(change, start)

    def _enter_change(self, change: PendingChange, start: float) -> None:
        before, order = self._epoch, change.order
        assert before is not None
        mesh = self._await(change.building())
        meeting = self._await(change.meeting)
        after = LiveEpoch(order.number, self._plans[order.number], mesh)
        num_bytes = 0
        if self._stays_as_it_is(change, before.plan, after.plan):
            self._workshop.take_over(after, before, self._num_updates)
        else:
            state = self._workshop.build_state(after.plan)
            old = before.slices
            slices, num_bytes = carry_out(change.transition, self.worker, meeting, old, state)
            self._workshop.set_up(after, state, slices, self._num_updates)
        if meeting is not None and meeting.size > 1:
            # Whoever leaves keeps its state until everyone is here.
            meeting.all_reduce(torch.zeros(1))
        self._enter(order, before, after, num_bytes, start)
        gone = left_over(before.mesh, mesh)
        self._close_aside(self.communicator, [*gone, *([meeting] if meeting else [])])

    def _stays_as_it_is(self, change: PendingChange, before: Plan, after: Plan) -> bool:
        """Nothing moves from here or to here, and the seats are the same."""
        moved = any(self.worker in (m.source, m.target) for m in change.transition.moves)
        return not moved and same_seats(self.worker, before, after)

    def _enter(
        self, order: Order, before: LiveEpoch | None, after: LiveEpoch, num_bytes: int, start: float
    ) -> None:
        self._epoch, self._before = after, before
        self._snapshot_epoch()
        mesh = after.mesh
        if self.ledger.epoch != order.number:
            self.ledger.enter(order)
        self._tell()
        self._hooks.phase("entered", self.ledger.version)
        self._link.plan_changed(
            ChangeReport(
                step=self.ledger.version,
                epoch=after.number,
                stall_s=time.perf_counter() - start,
                bytes_received=num_bytes,
                num_groups_kept=mesh.num_kept,
                num_groups_made=len(mesh.groups) - mesh.num_kept,
            )
        )

    # From no role to one.

    def _join(self, order: Order, plan: Plan) -> None:
        """Take part from the switch on: fed until then, or with what is moved at the switch."""
        start = time.perf_counter()
        self.ledger.prepare(order)
        self._tell()
        if all(joiner.name != self.worker for joiner in order.joiners):
            self._wait_for_switch(order, plan)
            return
        if self.communicator.woken:
            self._renew()
        linking = join_links(self.communicator, order, self.worker)
        beside = self.communicator.connects_beside_training
        building = self._build(plan, order.number, warm=True) if beside else None
        state = self._workshop.build_state(plan)
        state.attach(fresh_slices(state))
        self._workshop.warm_up(plan, state)
        links = self._await(linking)
        self._hooks.phase("join", 0)
        catch_up = CatchUp(state, links, self._config.optimizer, order.lineage)
        while not catch_up.wait(POLL_S):
            self._heed()
            self._check()
            if self.ledger.pending != order.number:  # it is void
                return
        building = building or self._build(plan, order.number, warm=True)
        epoch = LiveEpoch(order.number, plan, self._await(building))
        self._num_updates = catch_up.num_updates
        self._workshop.set_up(epoch, state, state.slices, self._num_updates)
        self.ledger.enter(order, version=catch_up.version, outcome=catch_up.outcome)
        self._enter(order, None, epoch, catch_up.bytes_received, start)
        self._close_aside(self.communicator, list(links.values()))

    def _wait_for_switch(self, order: Order, plan: Plan) -> None:
        """Nobody feeds this worker: it gets its state in one go when the others go over."""
        if self._epoch is None:
            raise InternalError(f"{self.worker} joins, and nobody feeds it or told it the plan")
        change = prepare_change(order, plan, self._epoch, self.communicator)
        key = f"changed/{order.number}"
        while not self._store.check([key]):
            self._heed(POLL_S)
            self._check()
            if self._left or self.ledger.pending != order.number:
                change.close("not entered")
                return
        version, self._num_updates = map(int, self._store.get(key).split())
        self.ledger.enter(order, version=version)
        self._enter_change(change, time.perf_counter())
