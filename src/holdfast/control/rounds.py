"""A round: all members stop and report; from the reports follows what each does next.

**Which plan the step in flight was begun under.** A worker that has entered the last order says
so. If none has, all is as it was when that order was decided. A planned change counts as entered
only if all who live have entered it: until then no step can have been finished in it, all still
have the state from before it, and it is reverted.

**Rollbacks.** If a member has not entered the last rollback, no step can have been finished after
it. It is ordered again for all; what such a worker holds is of a history that was given up.
"""

from collections.abc import Collection, Mapping
from math import sqrt

import msgspec

from holdfast.control.journal_state import JournalState, members_of
from holdfast.control.living_groups import living_groups
from holdfast.control.order import Order, PlanWithout, Share
from holdfast.control.report import LOSS_ADDEND, Member, WorkerReport
from holdfast.control.resolve import Resolution, StateLost, resolve
from holdfast.errors import HoldfastError
from holdfast.plan.without_workers import without_workers


class Round(msgspec.Struct, kw_only=True):
    number: int
    since_ms: int
    reason: str
    waiting: dict[Member, None]
    reports: dict[Member, WorkerReport]
    leaving: tuple[str, ...] = ()
    """Who has no place in the plan that follows, if no other worker is lost."""
    others_ms: int | None = None
    """Since when only those are waited for."""

    def answered(self, report: WorkerReport) -> None:
        if report.round == self.number and report.member in self.waiting:
            del self.waiting[report.member]
            self.reports[report.member] = report

    def without(self, member: Member) -> None:
        self.waiting.pop(member, None)
        self.reports.pop(member, None)


class RoundDecision(msgspec.Struct, frozen=True, kw_only=True):
    order: Order
    step: int
    shares: dict[str, Share]
    target: tuple[int, ...] = ()
    is_entered: bool = False
    """The planned change turned out to be entered by all."""
    reason: str


class NeedsRestore(msgspec.Struct, frozen=True):
    """Only a snapshot can help."""

    reason: str


Reports = Mapping[Member, WorkerReport]


def decide(
    journal: JournalState, reports: Reports, number: int, mode: str
) -> RoundDecision | NeedsRestore:
    assert journal.last is not None
    late = [str(member) for member, report in reports.items() if is_late(journal, report)]
    if late:
        return NeedsRestore(
            f"{', '.join(late)} never entered {journal.last.kind} {journal.last.number}"
        )
    change = journal.outstanding
    if change is None or not entered_by_all(journal, change, reports):
        return _complete(journal, reports, number, _base_epoch(journal, reports), mode)
    made = _complete(journal, reports, number, change.number, mode)
    if isinstance(made, NeedsRestore) and _is_reversible(change, reports):
        return _complete(journal, reports, number, _base_epoch(journal, reports), mode)
    return made


def is_late(journal: JournalState, report: WorkerReport) -> bool:
    """Is a member of the last order still in a history before its rollback?"""
    assert journal.last is not None
    is_member = journal.last.incarnations.get(report.member.name) == report.member.incarnation
    return is_member and report.lineage < journal.last.lineage


def entered_by_all(journal: JournalState, change: Order, reports: Reports) -> bool:
    alive = [member for member in members_of(change) if member in reports]
    return bool(alive) and all(reports[member].epoch == change.number for member in alive)


def _is_reversible(change: Order, reports: Reports) -> bool:
    """Was no step finished in the change?"""
    inside = [report for report in reports.values() if report.epoch == change.number]
    return all(r.outcome is None or r.outcome.epoch != change.number for r in inside)


def _base_epoch(journal: JournalState, reports: Reports) -> int:
    last = journal.last
    assert last is not None
    if journal.outstanding is not None and any(
        report.epoch == journal.outstanding.number for report in reports.values()
    ):
        return last.number
    inside = [report for report in reports.values() if report.epoch == last.number]
    if inside:
        return max(inside, key=lambda report: report.version).base
    return last.plan.epoch if isinstance(last.plan, PlanWithout) else last.number


def leaving(journal: JournalState, alive: Collection[str]) -> tuple[str, ...]:
    """Workers without a place in the plan that follows if these are left; none: it is not known."""
    if journal.last is None or journal.outstanding is not None:
        return ()
    plan = journal.plans[journal.last.number]
    gone = tuple(name for name in plan.workers if name not in alive)
    if not gone:
        return ()
    try:
        left, _ = without_workers(plan, gone)
    except HoldfastError:
        return ()
    return tuple(name for name in plan.workers if name not in left.seats)


def _complete(
    journal: JournalState, reports: Reports, number: int, base_epoch: int, mode: str
) -> RoundDecision | NeedsRestore:
    base_order, base = journal.orders[base_epoch], journal.plans[base_epoch]
    alive = {m.name: reports[m] for m in members_of(base_order) if m in reports}
    gone = tuple(name for name in base.workers if name not in alive)
    try:
        plan, _ = without_workers(base, gone)
    except HoldfastError as error:
        return NeedsRestore(str(error))
    if not plan.stages:
        return NeedsRestore("no worker is left")
    told = [alive[name] for name in alive]
    target = _known_target(journal, told, base_epoch)
    is_fast = mode == "fast" and not target
    made = resolve(
        base,
        plan,
        told,
        base_epoch=base_epoch,
        mode="fast" if is_fast else "exact",
        plans=journal.plans,
    )
    if isinstance(made, StateLost):
        return NeedsRestore(made.reason)
    if target:
        made = _restricted(made, target, base.num_micro_batches)
    return _decision(journal, made, number, gone, alive, plan.workers)


def _known_target(
    journal: JournalState, reports: list[WorkerReport], base_epoch: int
) -> tuple[int, ...]:
    """What an order before this one has decided for the same step: there may be results of it."""
    last = journal.last
    assert last is not None
    same_base = isinstance(last.plan, PlanWithout) and last.plan.epoch == base_epoch
    same_step = max(report.version for report in reports) == journal.step
    return journal.target if same_base and same_step else ()


def _restricted(made: Resolution, target: tuple[int, ...], num_micro_batches: int) -> Resolution:
    missing = {addend: _both(numbers, target) for addend, numbers in made.recompute.items()}
    return msgspec.structs.replace(
        made,
        recompute={addend: numbers for addend, numbers in missing.items() if numbers},
        rate_factor=sqrt(len(target) / num_micro_batches),
    )


def _both(numbers: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(number for number in numbers if number in target)


def _target_of(made: Resolution) -> tuple[int, ...]:
    """Every micro-batch that counts has a loss, known to a worker or still to be computed."""
    said = [number for numbers in made.losses.values() for number in numbers]
    return tuple(sorted({*said, *made.recompute.get(LOSS_ADDEND, ())}))


def _decision(
    journal: JournalState,
    made: Resolution,
    number: int,
    gone: tuple[str, ...],
    alive: dict[str, WorkerReport],
    workers: tuple[str, ...],
) -> RoundDecision:
    assert journal.last is not None
    order = Order(
        number=number,
        kind="recover",
        plan=PlanWithout(made.base, gone),
        incarnations={name: alive[name].member.incarnation for name in workers},
        lineage=journal.last.lineage,
        reason=made.reason,
    )
    living = living_groups(alive[name] for name in workers)
    shares = {
        name: msgspec.structs.replace(
            made.share(name, revert=_must_revert(journal, alive[name], made.base)),
            living=tuple(sorted(living.intersection(alive[name].groups))),
        )
        for name in workers
    }
    return RoundDecision(
        order=order,
        step=made.version,
        shares=shares,
        target=_target_of(made),
        is_entered=journal.outstanding is not None and made.base == journal.outstanding.number,
        reason=made.reason,
    )


def _must_revert(journal: JournalState, report: WorkerReport, base_epoch: int) -> bool:
    """Has it entered a change that came to nothing?"""
    order = journal.orders.get(report.epoch)
    if order is None or order.kind != "change" or report.epoch == base_epoch:
        return False
    return report.epoch in journal.cancelled or order == journal.outstanding
