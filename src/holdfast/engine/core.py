"""What a worker has while it trains, what it is told, and how it runs a step, makes groups and
gives them up.

How it goes over to another plan is in `changing`; what else it does on whose word, in `trainer`.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from holdfast.control.effects import Leave, Stop, Void, WorkerMessage
from holdfast.control.order import Freeze, Order, read_plan
from holdfast.control.report import Member, Outcome, WorkerReport
from holdfast.control.worker_position import WorkerPosition
from holdfast.control.worker_reports import StepReport
from holdfast.engine.agreement import Agreed
from holdfast.engine.background import Background
from holdfast.engine.change import Giving, PendingChange, prepare_change
from holdfast.engine.data import DataSource
from holdfast.engine.epoch import LiveEpoch, Model, TrainerConfig, Workshop, checksums
from holdfast.engine.group_keys import GroupKey
from holdfast.engine.groups import Communicator, GroupBroken, LiveGroup
from holdfast.engine.interpreter import Hooks
from holdfast.engine.link import CoordinatorLink
from holdfast.engine.measure import make_profile, probe_groups, unit_costs
from holdfast.engine.mesh import Mesh, make_mesh
from holdfast.engine.state import Slice
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.copying.gaps import Gaps
from holdfast.snapshot.copying.worker_snapshots import Keeper, WorkerSnapshots
from holdfast.snapshot.layout import Version

_LOG = logging.getLogger(__name__)

POLL_S = 0.02
_CLOSING_S = 10.0
"""At the end: an operation that gloo has lost may keep its group for longer."""

T = TypeVar("T")


class TrainerCore:
    def __init__(
        self,
        member: Member,
        *,
        model: Model,
        data: DataSource,
        config: TrainerConfig,
        store: Any,
        link: CoordinatorLink,
        hooks: Hooks | None = None,
    ) -> None:
        self.worker, self._config, self._store, self._link = member.name, config, store, link
        self.ledger = WorkerPosition(member)
        self._hooks = hooks or Hooks()
        self._hooks.before_agree = self._update_ready
        self._hooks.after_apply = self._give_result
        self._workshop = Workshop(
            self.ledger, model=model, data=data, config=config, hooks=self._hooks
        )
        self.stopwatch = self._workshop.stopwatch
        self.communicator = Communicator(
            self.worker,
            store,
            backend=config.backend,
            host=config.host,
            timeout_ms=config.timeout_ms,
            device=config.device,
        )
        self._plans: dict[int, Plan] = {}
        self._epoch: LiveEpoch | None = None
        self._before: LiveEpoch | None = None
        """The epoch before a change, until everybody was seen in the new one."""
        self._num_updates = 0
        self._order: Order | None = None
        """Accepted, and not carried out yet."""
        self._change: PendingChange | None = None
        self._report: WorkerReport | None = None
        self._stopping = self._stopped = self._left = False
        self._broken_at = self._ended_at = 0.0
        """When this worker could not go on; when its last step was over."""
        self.snapshots: WorkerSnapshots | None = None
        self._closer: Background[None] | None = None
        link.on_freeze(self.interrupt)

    @property
    def gaps(self) -> Gaps:
        """Who copies state while this worker waits."""
        return self._hooks.gaps

    @gaps.setter
    def gaps(self, gaps: Gaps) -> None:
        self._hooks.gaps = gaps

    def keep_snapshots(self, options: SnapshotOptions, keeper: Keeper) -> WorkerSnapshots:
        """From the next epoch on; `keeper` makes the memory for them."""
        self.gaps = self.snapshots = WorkerSnapshots(
            options,
            self.worker,
            keeper,
            device=self._workshop.device,
            current=self._snapshot_version,
            num_updates=lambda: self._num_updates,
        )
        return self.snapshots

    def _snapshot_version(self) -> Version | None:
        """What a snapshot of this worker's state would be called."""
        outcome = self.ledger.outcome
        return Version(self.ledger.version, outcome.epoch) if outcome is not None else None

    def _snapshot_epoch(self, since: Version | None = None) -> None:
        """Snapshots are of the epoch that was entered; `since`: see there."""
        if self.snapshots is None:
            return
        if self._epoch is not None and self._has_role:
            self.snapshots.enter(self._epoch.plan, self._epoch.slices, since)
        else:
            self.snapshots.leave()

    # Being interrupted.

    def interrupt(self, reason: str) -> None:
        """End whatever this worker is blocked in; safe from any thread."""
        self.communicator.wake(reason)

    @property
    def _is_interrupted(self) -> bool:
        return self._link.newest_freeze > max(self.ledger.round, self.ledger.epoch)

    def _check(self) -> None:
        if self._is_interrupted:
            raise GroupBroken(f"frozen by round {self._link.newest_freeze}")
        if self.communicator.woken:
            raise GroupBroken(self.communicator.woken)

    def _tell(self) -> None:
        self._link.tell(self.ledger.state())

    # Being told.

    def _heed(self, timeout_s: float = 0.0) -> None:
        """Take the words that are there, or wait for one."""
        while not self._left and (word := self._link.wait(timeout_s)) is not None:
            self._hear(word)
            timeout_s = 0.0

    def _hear(self, word: WorkerMessage) -> None:
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
            _LOG.warning("order %d (%s) is refused: %s", order.number, order.kind, why)
        elif order.kind == "change" and self._has_role:
            self.ledger.prepare(order)
            self._plans[order.number] = read_plan(order.plan, self._plans)
            self._drop_change(f"change {order.number} takes its place")
            self._change = self._prepare(order)
            self._tell()
        else:
            self._order = order

    def _prepare(self, order: Order) -> PendingChange:
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

    def _drop_change(self, why: str) -> None:
        if self._change is not None:
            self._change.close(why)
            self._change = None

    @property
    def _has_role(self) -> bool:
        return self._epoch is not None and self._epoch.interpreter is not None

    # Steps.

    def run_step(self) -> Agreed:
        """One step under the current plan, reported."""
        epoch = self._epoch
        assert epoch is not None
        assert epoch.interpreter is not None
        if self._change is not None:
            self._change.check(time.monotonic())
        start = time.perf_counter()
        agreed = epoch.interpreter.run_step(self.ledger.version, stop=self._stopping)
        self._ended_at = time.perf_counter()
        self._before = None
        self._step_done(agreed.outcome, self._ended_at - start)
        self._stopped = self._stopped or agreed.stop
        return agreed

    def _update_ready(self) -> None:
        """The last moment before an agreement to become ready for the pending change."""
        change, step = self._change, self.ledger.version
        if change is not None and step + 1 >= change.order.at_step:
            self.ledger.set_ready(change.is_ready(step))

    def _give_result(self, outcome: Outcome) -> None:
        self._num_updates += outcome.applied
        if self._change is not None:
            for feeder in self._change.feeders:
                feeder.give_result(outcome)

    def _step_done(self, outcome: Outcome, seconds: float) -> None:
        self.stopwatch.read()
        self._link.step_done(
            StepReport(
                step=outcome.step,
                epoch=self.ledger.epoch,
                seconds=seconds,
                loss=outcome.loss,
                norm=outcome.norm,
                num_tokens=outcome.num_tokens,
                learning_rate=self._config.optimizer.rate_at(outcome.step) * outcome.rate_factor,
                applied=outcome.applied,
                checksums=self.checksums() if self._config.verify else {},
            )
        )

    def _follow(self, epoch: LiveEpoch, outcome: Outcome) -> None:
        assert epoch.interpreter is not None
        start = time.perf_counter()
        epoch.interpreter.follow(outcome)
        self._ended_at = time.perf_counter()
        self._step_done(outcome, self._ended_at - start)

    # Groups.

    def _renew(self) -> None:
        """Give up all groups; a freeze that has come meanwhile is not overheard."""
        old, self.communicator = self.communicator, self.communicator.renew()
        old.wake("given up")
        self._close_aside(old)
        if self._is_interrupted:
            self.communicator.wake("frozen again")
        self._check()

    def _close_aside(self, old: Communicator, groups: list[LiveGroup] | None = None) -> None:
        """Closing takes gloo some 10 ms for every group: training does not wait for it, unless it
        must not go on meanwhile.
        """
        before = self._closer

        def close() -> None:
            if before is not None:
                before.join()
            if groups is None:
                old.close_all()
            else:
                old.close(groups)

        self._closer = Background("closing groups", close)
        if groups is not None and not old.connects_beside_training:
            self._await(self._closer)

    def _build(
        self, plan: Plan, number: int, more: Sequence[GroupKey] = (), *, warm: bool = False
    ) -> Background[Mesh]:
        communicator = self.communicator
        return Background(
            f"groups of epoch {number}",
            lambda: make_mesh(communicator, plan, number, None, more, warm=warm),
        )

    def _await(self, building: Background[T]) -> T:
        """What is being made; given up when a freeze comes."""
        while building.is_alive():
            building.join(POLL_S)
            self._check()
        return building.result()

    # What others want to know.

    @property
    def slices(self) -> dict[str, Slice]:
        return self._epoch.slices if self._epoch is not None else {}

    @property
    def plan(self) -> Plan:
        assert self._epoch is not None
        return self._epoch.plan

    @property
    def staging_bytes(self) -> int:
        reduction = self._epoch.reduction if self._epoch is not None else None
        return reduction.staging_bytes if reduction is not None else 0

    def profile(self) -> Profile:
        """What this worker has measured. Everybody must ask at the same step: links are probed."""
        assert self._epoch is not None
        medians = self.stopwatch.medians()
        probe = probe_groups(self._epoch.mesh, self.worker)
        costs = unit_costs(medians, self.plan)
        return make_profile(costs, medians, probe, self.plan, self.worker)

    def checksums(self) -> dict[str, int]:
        """Of every piece that several workers hold, parameters and moments: equal on all of
        them.
        """
        assert self._epoch is not None
        return checksums(self.worker, self._epoch)

    def close(self) -> None:
        self._drop_change("the end")
        if self.snapshots is not None:
            self.snapshots.leave()
        if self._closer is not None:
            self._closer.join(_CLOSING_S)
        self.communicator.close_all()
