"""Planned changes, from order to all members in it, or to none.

At most one is outstanding. It is over when all were seen in it, when a recovery cancels it, or
when it is void and all have confirmed never to enter it. A member that is gone while some have
entered it is a failure like any other: a round.
"""

from holdfast.control.change_planning import plan_change, reachable, renamed, with_spares
from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.journal_entries import Dropped, EnteredByAll, Ordered, Voided, Wanted
from holdfast.control.journal_state import members_of
from holdfast.control.order import FullPlan, Order
from holdfast.plan.text import format_plan


def begin_job(state: CoordinatorState, born_ms: int) -> None:
    """The first order, when all workers are there, or for long enough as many as are needed."""
    if state.journal.last is not None or state.round is not None:
        return
    if state.journal.stop is not None:
        state.finish(state.settings.first_step, "asked to stop before the first step")
        return
    late = state.now_ms - born_ms >= state.settings.start_ms
    if not late and len(state.roster.awake) < len(state.journal.wanted.workers):
        return
    if late:
        use_spares(state)
    available = state.available()
    target = reachable(state.journal.wanted, available)
    if target is None or (target != state.journal.wanted and not late):
        return
    number = state.journal.next_number()
    order = Order(
        number=number,
        kind="start",
        plan=FullPlan(format_plan(target)),
        incarnations={name: available[name] for name in target.workers},
        lineage=number,
        at_step=state.settings.first_step,
        reason="all workers are there" if target == state.journal.wanted else "enough are there",
    )
    state.record(Ordered(order, state.settings.first_step))
    state.decided(f"order {number}: start, {order.reason}", order=str(number))


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
    if not _is_quiet(state):
        return
    use_spares(state)
    available = state.available()
    if reachable(journal.wanted, available) == journal.plans[journal.last.number]:
        return
    change = plan_change(journal, available, journal.next_number())
    if change is not None:
        state.record(Ordered(change))
        state.decided(f"change {change.number}: {change.reason}", order=str(change.number))


def _is_quiet(state: CoordinatorState) -> bool:
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
        state.record(Wanted(format_plan(plan), reason, state.journal.wanted_at))
        state.decided(reason)
