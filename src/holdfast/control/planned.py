"""Planned changes, from order to everybody in it, or to nobody.

At most one is outstanding. It is over when everybody was seen in it, when a recovery cancels it, or
when it is void and everybody has confirmed never to enter it. A member that is gone while some have
entered it is a failure like any other: a round.
"""

from holdfast.control.change_planning import plan_change, reachable, renamed, with_spares
from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.journal_entries import Dropped, EnteredByAll, Ordered, Voided, Wanted
from holdfast.control.journal_state import members_of
from holdfast.control.order import FullPlan, Order
from holdfast.plan.text import format_plan


def begin_job(desk: CoordinatorState, born_ms: int) -> None:
    """The first order, when everybody is there, or as many as the model needs for long enough."""
    if desk.past.last is not None or desk.round is not None:
        return
    if desk.past.stop is not None:
        desk.finish(desk.settings.first_step, "asked to stop before the first step")
        return
    late = desk.now_ms - born_ms >= desk.settings.start_ms
    if not late and len(desk.roster.awake) < len(desk.past.wanted.workers):
        return
    if late:
        use_spares(desk)
    available = desk.available()
    target = reachable(desk.past.wanted, available)
    if target is None or (target != desk.past.wanted and not late):
        return
    number = desk.past.next_number()
    order = Order(
        number=number,
        kind="start",
        plan=FullPlan(format_plan(target)),
        incarnations={name: available[name] for name in target.workers},
        lineage=number,
        at_step=desk.settings.first_step,
        reason="everybody is there" if target == desk.past.wanted else "enough are there",
    )
    desk.record(Ordered(order, desk.settings.first_step))
    desk.decided(f"order {number}: start, {order.reason}", order=str(number))


def follow_change(desk: CoordinatorState) -> None:
    """While a member of the last order is out nothing is given up: it may have switched, and a
    joiner with it. The round will tell.
    """
    change, standing = desk.past.outstanding, desk.standing
    if change is None or desk.round is not None or standing.fenced:
        return
    if not standing.outside and not standing.fenced_next:
        entered = min(desk.roster.states[member].entered_at for member in standing.inside)
        desk.record(EnteredByAll(change.number, entered))
        desk.decided(f"everybody is in change {change.number}", order=str(change.number))
        return
    if desk.past.voided is None:
        _void_if_pointless(desk)
    if desk.past.voided is not None and not standing.inside and not standing.unvoided:
        desk.record(Dropped(change.number))
        desk.decided(f"change {change.number} came to nothing", order=str(change.number))


def _void_if_pointless(desk: CoordinatorState) -> None:
    if desk.standing.fenced_next:
        lost = ", ".join(str(member) for member in desk.standing.fenced_next)
        void(desk, f"{lost} is out")


def void(desk: CoordinatorState, reason: str) -> None:
    change = desk.past.outstanding
    if change is not None and desk.past.voided is None:
        desk.record(Voided(change.number, reason))
        desk.decided(f"change {change.number} is cancelled: {reason}", order=str(change.number))


def order_change(desk: CoordinatorState) -> None:
    """The next one, if nothing is in its way."""
    past = desk.past
    if past.last is None or past.outstanding is not None or desk.round is not None or past.stop:
        return
    if not _is_quiet(desk):
        return
    use_spares(desk)
    available = desk.available()
    if reachable(past.wanted, available) == past.plans[past.last.number]:
        return
    change = plan_change(past, available, past.next_number())
    if change is not None:
        desk.record(Ordered(change))
        desk.decided(f"change {change.number}: {change.reason}", order=str(change.number))


def _is_quiet(desk: CoordinatorState) -> bool:
    """Is everybody of the last order in it, well, and reachable?"""
    past, standing = desk.past, desk.standing
    assert past.last is not None
    if standing.broken or standing.stuck or standing.unheard:
        return False
    return all(
        not past.is_fenced(member) and desk.roster.is_reachable(member)
        for member in members_of(past.last)
    )


def use_spares(desk: CoordinatorState) -> None:
    """Names that cannot come back give their place in the wanted plan to spares."""
    wanted, available = desk.past.wanted, desk.available()
    missing = [name for name in wanted.workers if name not in available]
    lost = [name for name in missing if desk.is_lost_for_good(name)]
    spares = sorted(name for name in available if name not in wanted.seats)
    names = with_spares(wanted, lost, spares)
    if names:
        reason = ", ".join(f"{spare} takes the place of {name}" for name, spare in names.items())
        plan = renamed(wanted, names)
        desk.record(Wanted(format_plan(plan), reason, desk.past.wanted_at))
        desk.decided(reason)
