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

import logging
import time
from pathlib import Path

import torch

from holdfast.control.order import FullPlan, Order, Share, read_plan
from holdfast.control.worker_reports import RecoveryReport, RestoreReport
from holdfast.engine.completion import Completion, Losses, Slots
from holdfast.engine.core import POLL_S
from holdfast.engine.epoch import LiveEpoch
from holdfast.engine.group_keys import GroupKey
from holdfast.engine.groups import GroupBroken
from holdfast.engine.mesh import Mesh
from holdfast.engine.plan_changes import ChangingTrainer
from holdfast.engine.state import fresh_slices
from holdfast.errors import HoldfastError, InternalError
from holdfast.plan.exchanges import plan_exchanges, restrict
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.job_state import load_checkpoint, load_snapshot

_LOG = logging.getLogger(__name__)

_WORD_S = 60.0


class Trainer(ChangingTrainer):
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
            is_entering = self._order is not None
            try:
                if self._order is not None:
                    order, self._order = self._order, None
                    self._obey(order)
                elif not self._advance():
                    self._finish()
            except GroupBroken as error:
                self._break_off(error, is_entering=is_entering)
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

    def _break_off(self, error: GroupBroken, *, is_entering: bool) -> None:
        """Stop here, wake all peers, and note what there is. A worker that is frozen has told what
        it knows, unless a group broke while it carried out the order that ends the round.
        """
        self._broken_at = self._broken_at or time.perf_counter()
        self.communicator.wake(str(error))
        if self._epoch is not None and self._epoch.interpreter is not None:
            self._epoch.interpreter.break_off()
            if self._workshop.device.type == "cuda":
                torch.cuda.synchronize(self._workshop.device)
        if not self._is_interrupted and (is_entering or not self.ledger.is_frozen):
            _LOG.warning("step %d broke off: %s", self.ledger.version, error)
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
        plan = self._plans[order.number] = read_plan(order.plan, self._plans)
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
            plan = self._plans[order.number] = read_plan(order.plan, self._plans)
            self._epoch = LiveEpoch(order.number, plan, Mesh(plan, order.number, {}, 0))
        self._broken_at = 0.0
        self._tell()

    def _start(self, order: Order, plan: Plan) -> None:
        mesh = self._await(self._build(plan, order.number))
        self._begin(order, LiveEpoch(order.number, plan, mesh))

    def _begin(self, order: Order, epoch: LiveEpoch) -> None:
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
        self._warm_up_device(epoch)
        self.ledger.enter(order)
        self._epoch = epoch
        self._snapshot_epoch()

    def _warm_up_device(self, epoch: LiveEpoch) -> None:
        """The first launch of a kernel loads it, and that waits for all that runs on the device:
        also for a message that comes only after this very launch.
        """
        if self._workshop.device.type == "cuda" and epoch.state is not None:
            self._workshop.warm_up(epoch.plan, epoch.state)

    # Recovery.

    def _recover(self, order: Order, plan: Plan) -> None:
        share = order.share
        assert share is not None
        old = self._before if share.revert else self._epoch
        self._renew()
        building = self._build(plan, order.number, self._completing_groups(share, plan))
        if old is None or old.state is None:
            self._begin_late(order, share, LiveEpoch(order.number, plan, self._await(building)))
            return
        followed = self._follow_if_behind(old, share)
        epoch = LiveEpoch(order.number, plan, self._await(building))
        epoch.state = old.state.under(plan)
        self._enter_recovery(order, epoch)
        if share.step < self._config.num_steps:
            self._complete(share, epoch, old, followed)
        self._workshop.set_up_again(epoch, self._num_updates)
        self._snapshot_epoch()
        self._recovered(order, share, followed)

    def _completing_groups(self, share: Share, plan: Plan) -> list[GroupKey]:
        """The step in flight is exchanged as its own plan had it, among those who are left."""
        base = restrict(plan_exchanges(self._plans[share.base]), plan.workers)
        members = [exchange.members for found in base for exchange in found]
        return [("reduce", who) for who in members if len(who) > 1 and self.worker in who]

    def _begin_late(self, order: Order, share: Share, epoch: LiveEpoch) -> None:
        """The failure came before this worker had begun."""
        if share.step:
            raise InternalError(f"{self.worker} has no state for step {share.step}")
        self._begin(order, epoch)

    def _follow_if_behind(self, old: LiveEpoch, share: Share) -> bool:
        """Apply the step that others have applied, with the gradients that are here."""
        if share.outcome is None or self.ledger.version >= share.step:
            return False
        self._follow(old, share.outcome)
        return True

    def _enter_recovery(self, order: Order, epoch: LiveEpoch) -> None:
        self.ledger.enter(order)
        self._epoch, self._before = epoch, None
        self._snapshot_epoch()
        self._tell()

    def _complete(self, share: Share, epoch: LiveEpoch, old: LiveEpoch, followed: bool) -> None:
        """The step in flight: what was found of it here counts, as the share says."""
        assert epoch.state is not None
        losses: Losses = old.interpreter.losses if old.interpreter is not None else {}
        results = self._report.results if self._report is not None and not followed else ()
        slots = Slots(epoch.state, self._plans[share.base], epoch.plan.workers)
        completion = Completion(share, slots, epoch.state, results, losses)
        self._workshop.set_up_completion(epoch, completion, slots, self._num_updates)
        self.run_step()

    def _recovered(self, order: Order, share: Share, followed: bool) -> None:
        stall = max(0.0, self._ended_at - self._broken_at) if self._broken_at else 0.0
        self._broken_at = 0.0
        num_micro_batches = len(share.micro_batches)
        report = RecoveryReport(share.step, order.number, stall, num_micro_batches, followed)
        self._link.recovered(report)

    # Snapshots.

    def _restore(self, order: Order, plan: Plan) -> None:
        """Everybody has stopped: what is in memory of that version stays as it is."""
        if self.snapshots is None:
            raise HoldfastError(f"order {order.number}: there are no snapshots to restore from")
        start = time.perf_counter()
        self._renew()
        building = self._build(plan, order.number)
        state = self._workshop.build_state(plan)
        slices = fresh_slices(state)
        version, options = Version(order.version, order.agreed_in), self.snapshots.options
        loaded = load_snapshot(
            slices,
            version,
            job=options.job,
            node=node_of(self.worker),
            checkpoints=options.checkpoints,
        )
        seconds = time.perf_counter() - start
        epoch = LiveEpoch(order.number, plan, self._await(building))
        self._num_updates = loaded.num_updates
        self._workshop.set_up(epoch, state, slices, self._num_updates)
        self._warm_up_device(epoch)
        self.ledger.enter(order)
        self._epoch, self._before = epoch, None
        self._snapshot_epoch(version)
        stall = time.perf_counter() - (self._broken_at or start)
        self._broken_at = 0.0
        self._link.restored(
            RestoreReport(
                step=order.version,
                epoch=order.number,
                stall_s=stall,
                load_s=seconds,
                bytes_by_origin=loaded.bytes_by_origin,
                reasons=loaded.reasons,
            )
        )
