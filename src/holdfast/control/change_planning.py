"""Planned changes: which plan to go to next, who joins, and who feeds whom.

The job always heads for the *wanted* plan, the one it would run with all workers. What can be had
of it now is that plan without the stages of those who are missing. A name that is missing for good
is replaced by a spare, in the wanted plan itself.
"""

from collections.abc import Collection, Sequence

import msgspec

from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Joiner, Order
from holdfast.errors import HoldfastError
from holdfast.plan.feeding import choose_sources
from holdfast.plan.plan import Plan
from holdfast.plan.text import format_plan
from holdfast.plan.without_workers import without_workers


def reachable(wanted: Plan, available: Collection[str]) -> Plan | None:
    """What can be had of the wanted plan; None: nothing that covers the model."""
    missing = [name for name in wanted.workers if name not in available]
    try:
        plan, _ = without_workers(wanted, missing)
    except HoldfastError:
        return None
    return plan if plan.stages else None


def with_spares(wanted: Plan, lost: Sequence[str], spares: Sequence[str]) -> dict[str, str]:
    """Who takes whose place: the spares in their order."""
    return dict(zip((name for name in wanted.workers if name in lost), spares, strict=False))


def renamed(plan: Plan, names: dict[str, str]) -> Plan:
    stages = tuple(
        msgspec.structs.replace(
            stage, workers=tuple(names.get(worker, worker) for worker in stage.workers)
        )
        for stage in plan.stages
    )
    return msgspec.structs.replace(plan, stages=stages)


def plan_change(
    journal: JournalState, incarnations: dict[str, int], number: int, *, has_snapshots: bool = False
) -> Order | None:
    """The next change, if there is one to make. `incarnations`: of all who are available;
    `has_snapshots`: versions are kept in memory, so that sources need not give all they have.
    """
    assert journal.last is not None
    now = journal.plans[journal.last.number]
    target = reachable(journal.wanted, incarnations)
    if target is None or target == now:
        return None
    joiners = find_joiners(now, target, journal.last.incarnations, incarnations)
    return Order(
        number=number,
        kind="change",
        plan=FullPlan(format_plan(target)),
        incarnations={name: incarnations[name] for name in target.workers},
        lineage=journal.last.lineage,
        joiners=joiners,
        from_memory=has_snapshots and bool(joiners),
        at_step=journal.wanted_at,
        reason=_reason(journal, joiners, target),
    )


def _reason(journal: JournalState, joiners: tuple[Joiner, ...], target: Plan) -> str:
    if joiners:
        return f"{', '.join(joiner.name for joiner in joiners)} can join"
    left = "" if target == journal.wanted else ", as far as it can be had"
    return f"{journal.wanted_reason or 'another plan is wanted'}{left}"


def find_joiners(
    now: Plan, target: Plan, before: dict[str, int], incarnations: dict[str, int]
) -> tuple[Joiner, ...]:
    """Who is new in `target`, each with its sources."""
    load: dict[str, int] = {}
    found: list[Joiner] = []
    for worker in target.workers:
        if before.get(worker) != incarnations[worker]:
            found.append(Joiner(worker, choose_sources(now, target, worker, load)))
    return tuple(found)
