"""One worker's life: obey orders, run steps, stop where a failure says so, and go on from there.

    start     make groups and initial state, and train
    change    while training, make the next plan's groups on a thread beside it and feed those who
              join; when the agreement of a step says that everybody is ready, go over
    recover   after a failure: make groups anew, apply what others have applied, complete the broken
              step, and train on
    restore   state was lost: load a snapshot, and train on from there

Whatever breaks, a group or a freeze that came meanwhile, ends in one place: the step is broken off,
everything that is there stays as it is, and the worker reports and waits for its next order. In
a healthy step nobody is asked anything.
"""

import time
from pathlib import Path
from typing import Any

import torch

from holdfast.control.effects import Leave, Message, Stop, Void
from holdfast.control.order import Freeze, FullPlan, Order
from holdfast.engine.agreement import Agreed
from holdfast.engine.background import Background
from holdfast.engine.catch_up import CatchUp
from holdfast.engine.change import Change, Giving, join_links, prepare_change
from holdfast.engine.completion import Completion, Losses, Slots
from holdfast.engine.core import POLL_S, TrainerCore
from holdfast.engine.epoch import Epoch, same_seats
from holdfast.engine.groups import GroupBroken
from holdfast.engine.loading import load_checkpoint
from holdfast.engine.mesh import Mesh, left_over
from holdfast.engine.movement import carry_out
from holdfast.engine.reports import ChangeReport, RecoveryReport
from holdfast.engine.state import fresh_slices
from holdfast.errors import InternalError
from holdfast.plan.plan import Plan
from holdfast.plan.reduce import plan_exchanges, restrict

_WORD_S = 60.0


class Trainer(TrainerCore):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._order: Order | None = None
        """Accepted, and not carried out yet."""

    def run_step(self) -> Agreed:
        """One step, and the change to the next plan if it is agreed on."""
        agreed = super().run_step()
        if agreed.switch and not agreed.stop:
            self._go_over()
        return agreed

    # Being told.

    def _heed(self, timeout_s: float = 0.0) -> None:
        """Take the words that are there, or wait for one."""
        while not self._left and (word := self._link.wait(timeout_s)) is not None:
            self._hear(word)
            timeout_s = 0.0

    def _hear(self, word: Message) -> None:
        match word:
            case Stop():
                self._stopping = True
            case Leave():
                self._left = True
            case Void(number=number):
                self.ledger.on_void(number)
                if self._change is not None and self.ledger.pending == 0:
                    self._drop_change(f"change {number} is void")
                self._tell()
            case Freeze():
                self._freeze(word)
            case Order():
                self._consider(word)

    def _freeze(self, freeze: Freeze) -> None:
        report = self.ledger.on_freeze(freeze)
        if report is not None:
            self._drop_change(f"round {freeze.round}")
            self._report = report
            self._tell()

    def _consider(self, order: Order) -> None:
        is_good, why = self.ledger.accepts(order)
        if not is_good:
            print(f"order {order.number} ({order.kind}) is not obeyed: {why}", flush=True)
        elif order.kind == "change" and self._has_role:
            self.ledger.prepare(order)
            self._plans[order.number] = self._read_plan(order.plan)
            self._drop_change(f"change {order.number} takes its place")
            self._change = self._prepare(order)
            self._tell()
        else:
            self._order = order

    # The loop.

    def start(self) -> None:
        """Wait for the first order and carry it out."""
        while self._order is None and not self._left:
            self._heed(_WORD_S)
        if self._order is not None:
            order, self._order = self._order, None
            self._obey(order)

    def run(self) -> int:
        """Until everybody is done; the number of the step that would come next."""
        while not self._left:
            try:
                if self._order is not None:
                    order, self._order = self._order, None
                    self._obey(order)
                elif not self._advance():
                    self._finish()
            except GroupBroken as error:
                self._break_off(error)
                self._await_order()
        return self.ledger.version

    def _advance(self) -> bool:
        """One step, or some waiting; False: all is done."""
        self._heed()
        self._check()
        if self._order is not None:
            return True
        if not self._has_role:
            self._heed(POLL_S)
            return not self._left
        if self._stopped or self.ledger.version >= self._config.num_steps:
            return False
        self.run_step()
        return True

    def _finish(self) -> None:
        """Everything is done here; others may still need this worker to recover."""
        if not self.ledger.is_done:
            self.ledger.done()
            if self.snapshots is not None:
                self.snapshots.flush()
            self._link.finished(self.ledger.version)
            self._tell()
        self._heed(POLL_S)
        if self._order is None:
            self._check()

    def _break_off(self, error: GroupBroken) -> None:
        """Stop here, have everybody else stop, and note what there is."""
        self._broken_at = self._broken_at or time.perf_counter()
        self.communicator.wake(str(error))
        if self._epoch is not None and self._epoch.interpreter is not None:
            self._epoch.interpreter.break_off()
            if self._workshop.device.type == "cuda":
                torch.cuda.synchronize(self._workshop.device)
        if not self._is_interrupted and not self.ledger.is_frozen:
            print(f"broken in step {self.ledger.version}: {error}", flush=True)
            self.ledger.on_broken(str(error), error.blamed)
            self._tell()

    def _await_order(self) -> None:
        """Answer freezes until an order comes that ends the last of them."""
        while self._order is None and not self._left:
            self._heed(_WORD_S)

    # Orders.

    def _obey(self, order: Order) -> None:
        if not self.ledger.is_in(order):
            self._leave_out(order)
            return
        plan = self._plans[order.number] = self._read_plan(order.plan)
        if order.kind == "start":
            self._start(order, plan)
        elif order.kind == "recover":
            self._recover(order, plan)
        elif order.kind == "change":
            self._join(order, plan)
        else:
            self._restore(order, plan)
        self._tell()

    def _leave_out(self, order: Order) -> None:
        """No role in the new plan; the process stays for the next one."""
        self._renew()
        self.ledger.enter(order)
        self._epoch = self._before = None
        self._snapshot_epoch()
        if isinstance(order.plan, FullPlan):
            plan = self._plans[order.number] = self._read_plan(order.plan)
            self._epoch = Epoch(order.number, plan, Mesh(plan, order.number, {}, 0))
        self._broken_at = 0.0
        self._tell()

    def _start(self, order: Order, plan: Plan) -> None:
        mesh = self._await(self._build(plan, order.number))
        self._begin(order, Epoch(order.number, plan, mesh))

    def _begin(self, order: Order, epoch: Epoch) -> None:
        """With the initial values, which anybody can make, or those of an earlier run."""
        state = self._workshop.build_state(epoch.plan)
        slices = fresh_slices(state)
        self._num_updates = 0
        if self._config.resume and order.at_step:
            root = Path(self._config.resume)
            self._num_updates = load_checkpoint(slices, root, order.at_step).num_updates
        else:
            for piece in slices.values():
                self._workshop.model.fill(piece.parameter, piece.tensor, piece.box)
        self._workshop.set_up(epoch, state, slices, self._num_updates)
        self.ledger.enter(order)
        self._epoch = epoch
        self._snapshot_epoch()

    def _recover(self, order: Order, plan: Plan) -> None:
        share, old = order.share, self._epoch
        assert share is not None
        if share.revert:
            old = self._before
        self._renew()
        base = restrict(plan_exchanges(self._plans[share.base]), plan.workers)
        groups = [("reduce", e.members) for found in base for e in found if len(e.members) > 1]
        building = self._build(plan, order.number, [g for g in groups if self.worker in g[1]])
        followed = share.outcome is not None and self.ledger.version < share.step
        if old is None or old.state is None:
            mesh = self._await(building)
            if share.step:
                raise InternalError(f"{self.worker} has no state for step {share.step}")
            self._begin(order, Epoch(order.number, plan, mesh))
            return
        if followed and share.outcome is not None:
            self._follow(old, share.outcome)
        losses: Losses = old.interpreter.losses if old.interpreter is not None else {}
        epoch = Epoch(order.number, plan, self._await(building))
        epoch.state = old.state.under(plan)
        results = self._report.results if self._report is not None and not followed else ()
        self.ledger.enter(order)
        self._epoch, self._before = epoch, None
        self._snapshot_epoch()
        self._tell()
        if share.step < self._config.num_steps:
            slots = Slots(epoch.state, self._plans[share.base], plan.workers)
            completion = Completion(share, slots, epoch.state, results, losses)
            self._workshop.set_up_completion(epoch, completion, slots, self._num_updates)
            self.run_step()
        self._workshop.set_up_again(epoch, self._num_updates)
        self._snapshot_epoch()
        self._recovered(order, followed, len(share.micro_batches))

    def _recovered(self, order: Order, followed: bool, num_micro_batches: int) -> None:
        stall = time.perf_counter() - self._broken_at if self._broken_at else 0.0
        self._broken_at = 0.0
        step = order.share.step if order.share is not None else 0
        self._link.recovered(RecoveryReport(step, order.number, stall, num_micro_batches, followed))

    # Changes.

    def _prepare(self, order: Order) -> Change:
        epoch, plan = self._epoch, self._plans[order.number]
        assert epoch is not None
        assert epoch.state is not None
        giving = Giving(
            epoch.state,
            self._hooks.state_lock,
            lambda: (self.ledger.version, self._num_updates),
            self._config.feed_delay_ms,
        )
        if self.worker in plan.seats:
            Background(f"actions of epoch {order.number}", lambda: self._workshop.prefetch(plan))
        return prepare_change(order, plan, epoch, self.communicator, giving)

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

    def _enter_change(self, change: Change, start: float) -> None:
        before, order = self._epoch, change.order
        assert before is not None
        mesh = self._await(change.building)
        meeting = self._await(change.meeting)
        after = Epoch(order.number, self._plans[order.number], mesh)
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

    def _stays_as_it_is(self, change: Change, before: Plan, after: Plan) -> bool:
        """Nothing moves from here or to here, and the seats are the same."""
        moved = any(self.worker in (m.source, m.target) for m in change.transition.moves)
        return not moved and same_seats(self.worker, before, after)

    def _enter(
        self, order: Order, before: Epoch | None, after: Epoch, num_bytes: int, start: float
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
        building = self._build(plan, order.number)
        state = self._workshop.build_state(plan)
        state.attach(fresh_slices(state))
        links = self._await(linking)
        self._hooks.phase("join", 0)
        catch_up = CatchUp(state, links, self._config.optimizer, order.lineage)
        self._workshop.prefetch(plan)  # nobody shall wait for it after the switch
        while not catch_up.wait(POLL_S):
            self._heed()
            self._check()
            if self.ledger.pending != order.number:  # it is void
                return
        epoch = Epoch(order.number, plan, self._await(building))
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
