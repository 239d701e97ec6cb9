"""What a worker has while it trains, and how it runs a step, makes groups and gives them up.

What it does on whose word is in `trainer`.
"""

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from holdfast.control.member import MemberLedger
from holdfast.control.order import FullPlan, Order, PlanChange, SamePlan
from holdfast.control.report import Member, Outcome, Report
from holdfast.engine.agreement import Agreed
from holdfast.engine.arena_plan import SnapshotOptions
from holdfast.engine.background import Background
from holdfast.engine.change import Change
from holdfast.engine.data import DataSource
from holdfast.engine.epoch import Epoch, Model, TrainerConfig, Workshop, checksums
from holdfast.engine.group_keys import Key
from holdfast.engine.groups import Communicator, GroupBroken, LiveGroup
from holdfast.engine.interpreter import Hooks
from holdfast.engine.link import Link
from holdfast.engine.loading import load_snapshot
from holdfast.engine.measure import make_profile, probe_groups, unit_costs
from holdfast.engine.mesh import Mesh, make_mesh
from holdfast.engine.reports import RestoreReport, StepReport
from holdfast.engine.snapshots import Keeper, Snapshots
from holdfast.engine.state import Slice, fresh_slices
from holdfast.errors import HoldfastError
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.survive import without_workers
from holdfast.plan.text import parse_plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.gaps import Gaps
from holdfast.snapshot.layout import Version

POLL_S = 0.02

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
        link: Link,
        hooks: Hooks | None = None,
    ) -> None:
        self.worker, self._config, self._store, self._link = member.name, config, store, link
        self.ledger = MemberLedger(member)
        self._hooks = hooks or Hooks()
        self._hooks.before_agree = self._update_ready
        self._hooks.before_apply = self._give_result
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
        )
        self._plans: dict[int, Plan] = {}
        self._epoch: Epoch | None = None
        self._before: Epoch | None = None
        """The epoch before a change, until everybody was seen in the new one."""
        self._num_updates = 0
        self._change: Change | None = None
        self._report: Report | None = None
        self._stopping = self._stopped = self._left = False
        self._broken_at = 0.0
        self.snapshots: Snapshots | None = None
        self._closer: Background[None] | None = None
        link.on_freeze(self.interrupt)

    @property
    def gaps(self) -> Gaps:
        """Who copies state while this worker waits."""
        return self._hooks.gaps

    @gaps.setter
    def gaps(self, gaps: Gaps) -> None:
        self._hooks.gaps = gaps

    def keep_snapshots(self, options: SnapshotOptions, keeper: Keeper) -> Snapshots:
        """From the next epoch on; `keeper` makes the memory for them."""
        self.gaps = self.snapshots = Snapshots(
            options,
            self.ledger,
            keeper,
            device=self._workshop.device,
            num_updates=lambda: self._num_updates,
        )
        return self.snapshots

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

    def _read_plan(self, change: PlanChange) -> Plan:
        if isinstance(change, FullPlan):
            return parse_plan(change.text)
        if isinstance(change, SamePlan):
            return self._plans[change.epoch]
        return without_workers(self._plans[change.epoch], change.gone)[0]

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
        self._before = None
        self._step_done(agreed.outcome, time.perf_counter() - start)
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

    def _follow(self, epoch: Epoch, outcome: Outcome) -> None:
        assert epoch.interpreter is not None
        start = time.perf_counter()
        epoch.interpreter.follow(outcome)
        self._step_done(outcome, time.perf_counter() - start)

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
        """Closing takes gloo some 10 ms for every group: nobody waits for it."""
        before = self._closer

        def close() -> None:
            if before is not None:
                before.join()
            if groups is None:
                old.close_all()
            else:
                old.close(groups)

        self._closer = Background("closing groups", close)

    def _build(self, plan: Plan, number: int, more: Sequence[Key] = ()) -> Background[Mesh]:
        communicator = self.communicator
        return Background(
            f"groups of epoch {number}",
            lambda: make_mesh(communicator, plan, number, None, more),
        )

    def _await(self, building: Background[T]) -> T:
        """What is being made; given up when a freeze comes."""
        while building.is_alive():
            building.join(POLL_S)
            self._check()
        return building.result()

    def _drop_change(self, why: str) -> None:
        if self._change is not None:
            self._change.close(why)
            self._change = None

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
        epoch = Epoch(order.number, plan, self._await(building))
        self._num_updates = loaded.num_updates
        self._workshop.set_up(epoch, state, slices, self._num_updates)
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
            self._closer.join()
        self.communicator.close_all()
