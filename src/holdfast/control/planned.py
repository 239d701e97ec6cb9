"""Planned changes, from order to all members in it, or to none.

At most one is outstanding. It is over when all were seen in it, when a recovery cancels it, or
when it is void and all have confirmed never to enter it. A member that is gone while some have
entered it is a failure like any other: a round.
"""

import msgspec

from holdfast.control.change_planning import plan_change, reachable, renamed, with_spares
from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.facts import PlanWanted
from holdfast.control.journal_entries import Dropped, EnteredByAll, Ordered, Voided, Wanted
from holdfast.control.journal_state import members_of
from holdfast.control.order import FullPlan, Order
from holdfast.control.stopping import stop_before_start
from holdfast.plan.entering import why_not_runnable
from holdfast.plan.plan import Plan
from holdfast.plan.text import format_plan
from holdfast.plan.workers import node_of


def begin_job(state: CoordinatorState, begun_ms: int) -> None:
    """The first order, when all workers are there that the job does not begin without, or as many
    as are needed, once the others cannot come any more or have had time enough.
    """
    if state.journal.last is not None or state.round is not None:
        return
    if state.journal.stop is not None:
        stop_before_start(state)
        return
    is_late = state.now_ms - begun_ms >= state.settings.start_ms
    awaited = _awaited(state)
    if not is_late and not all(map(state.can_never_return, awaited)):
        return
    _want_plan_of_version(state)
    may_lack_some = is_late or bool(awaited) or bool(state.roster.absent)
    if may_lack_some:
        use_spares(state)
    available = state.available()
    target = reachable(state.journal.wanted, available)
    if target is None:
        fail_if_hopeless(state, "the job cannot begin", available)
        return
    if target != state.journal.wanted and not may_lack_some:
        return
    order = first_order(state, target, {name: available[name] for name in target.workers})
    step = order.at_step if order.kind == "start" else order.version
    state.record(Ordered(order, step))
    state.decided(f"order {order.number}: {order.kind}, {order.reason}", order=str(order.number))


def _awaited(state: CoordinatorState) -> list[str]:
    roster, wanted = state.roster, state.journal.wanted.workers
    here = (name for name in wanted if node_of(name) not in roster.absent)
    return [name for name in here if name not in roster.awake]


def fail_if_hopeless(state: CoordinatorState, reason: str, available: dict[str, int]) -> None:
    """A job that has too few workers, and will not have more, ends."""
    missing = [name for name in state.journal.wanted.workers if name not in available]
    if all(map(state.can_never_return, missing)):
        state.fail(f"{reason}; {', '.join(missing)} cannot be started again")


def _want_plan_of_version(state: CoordinatorState) -> None:
    """A run that goes on after a change of the job file begins with the plan from there on."""
    found = state.snapshots.newest_loadable() if state.journal.run > 1 else None
    if found is None:
        return
    in_force = [planned for planned in state.settings.changes if planned.at_step <= found.step]
    if in_force and in_force[-1].at_step > state.journal.wanted_at:
        planned = in_force[-1]
        reason = f"the job file says so: [[change]] at_step = {planned.at_step}"
        state.record(Wanted(format_plan(planned.plan), reason, planned.at_step))


def first_order(state: CoordinatorState, target: Plan, incarnations: dict[str, int]) -> Order:
    """Of a run: from the newest version that runs before it have left, else from the start."""
    number = state.journal.next_number()
    order = Order(
        number=number,
        kind="start",
        plan=FullPlan(format_plan(target)),
        incarnations=incarnations,
        lineage=number,
        at_step=state.settings.first_step,
        reason="all workers are there" if target == state.journal.wanted else "enough are there",
    )
    if state.journal.run == 1:
        return order
    choice = state.snapshots.choose_first()
    if choice.version is None:
        return msgspec.structs.replace(order, reason=choice.reason)
    return msgspec.structs.replace(
        order,
        kind="restore",
        at_step=0,
        version=choice.version.step,
        agreed_in=choice.version.agreed_in,
        reason=choice.reason,
    )


def follow_change(state: CoordinatorState) -> None:
    """While a member of the last order is out nothing is given up: it may have switched, and a
    joiner with it. The round will tell.
    """
    change, status = state.journal.outstanding, state.status
    if change is None or state.round is not None or status.fenced:
        return
    if not status.outside and not status.fenced_next:
        entered = min(state.roster.states[member].entered_at for member in status.inside)
        state.record(EnteredByAll(change.number, entered))
        state.decided(f"all members are in change {change.number}", order=str(change.number))
        return
    if state.journal.voided is None:
        _void_if_pointless(state)
    if state.journal.voided is not None and not status.inside and not status.unvoided:
        state.record(Dropped(change.number))
        state.decided(f"change {change.number} came to nothing", order=str(change.number))


def _void_if_pointless(state: CoordinatorState) -> None:
    if state.status.fenced_next:
        lost = ", ".join(str(member) for member in state.status.fenced_next)
        void(state, f"{lost} is out")


def void(state: CoordinatorState, reason: str) -> None:
    change = state.journal.outstanding
    if change is not None and state.journal.voided is None:
        state.record(Voided(change.number, reason))
        state.decided(f"change {change.number} is cancelled: {reason}", order=str(change.number))


def want_plan(state: CoordinatorState, wanted: PlanWanted) -> None:
    if why := _why_refused(state.settings.plan, wanted.plan):
        state.decided(f"a plan is refused: {why}", reason=wanted.reason)
        return
    state.record(Wanted(format_plan(wanted.plan), wanted.reason, wanted.at_step))
    void(state, "another plan is wanted")


def _why_refused(first: Plan, plan: Plan) -> str:
    """Whatever workers there are: it could never be entered. Empty: it could."""
    if plan.units != first.units:
        return "it is for another model"
    if plan.num_micro_batches != first.num_micro_batches:
        return f"{plan.num_micro_batches} micro-batches a step, not {first.num_micro_batches}"
    return why_not_runnable(plan)


def order_change(state: CoordinatorState) -> None:
    """The next one, if nothing is in its way."""
    journal = state.journal
    if (
        journal.last is None
        or journal.outstanding is not None
        or state.round is not None
        or journal.stop
    ):
        return
    if not is_quiet(state):
        return
    available = state.available()
    if state.settings.replan.policy == "off":
        last = journal.last.incarnations
        available = {name: n for name, n in available.items() if last.get(name) == n}
    else:
        use_spares(state)
    if reachable(journal.wanted, available) == journal.plans[journal.last.number]:
        return
    change = plan_change(
        journal,
        available,
        journal.next_number(),
        has_snapshots=state.snapshots.newest_step is not None,
    )
    if change is not None:
        state.record(Ordered(change))
        state.decided(f"change {change.number}: {change.reason}", order=str(change.number))


def is_quiet(state: CoordinatorState) -> bool:
    """Are all members of the last order in it, well, and reachable?"""
    journal, status = state.journal, state.status
    assert journal.last is not None
    if status.broken or status.stuck or status.unheard:
        return False
    return all(
        not journal.is_fenced(member) and state.roster.is_reachable(member)
        for member in members_of(journal.last)
    )


def use_spares(state: CoordinatorState) -> None:
    """Names that cannot come back give their place in the wanted plan to spares."""
    wanted, available = state.journal.wanted, state.available()
    missing = [name for name in wanted.workers if name not in available]
    lost = [name for name in missing if state.is_lost_for_good(name)]
    spares = sorted(name for name in available if name not in wanted.seats)
    names = with_spares(wanted, lost, spares)
    if names:
        reason = ", ".join(f"{spare} takes the place of {name}" for name, spare in names.items())
        plan = renamed(wanted, names)
        by_planner = state.journal.wanted_by_planner
        state.record(Wanted(format_plan(plan), reason, state.journal.wanted_at, by_planner))
        state.decided(reason)
