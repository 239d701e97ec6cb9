"""Holding rounds: when one begins, when it is decided, and what happens if state is lost."""

from itertools import chain

from holdfast.control.change_planning import reachable
from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.journal_entries import EnteredByAll, NumberTaken, Ordered
from holdfast.control.journal_state import members_of
from holdfast.control.order import FullPlan, Order
from holdfast.control.planned import fail_if_hopeless, use_spares
from holdfast.control.report import Member
from holdfast.control.rounds import (
    NeedsRestore,
    Round,
    RoundDecision,
    decide,
    is_late,
    leaving,
)
from holdfast.control.verdicts import Blame, accuse
from holdfast.plan.plan import Plan
from holdfast.plan.text import format_plan
from holdfast.plan.workers import node_of


def begin_if_needed(state: CoordinatorState, blame: Blame) -> None:
    if state.round is not None or state.journal.last is None:
        return
    reason = _why(state)
    if not reason:
        return
    if state.status.broken:
        accuse(state, blame)
    number = state.journal.next_number()
    state.record(NumberTaken(number, reason))
    waiting = [member for member in state.journal.members() if not state.journal.is_fenced(member)]
    state.round = Round(
        number=number,
        since_ms=state.now_ms,
        reason=reason,
        waiting=dict.fromkeys(waiting),
        reports={},
        leaving=leaving(state.journal, {member.name for member in waiting}),
    )
    state.standstill = ""
    state.decided(f"round {number}: {reason}", round=str(number))
    state.changed()


def _why(state: CoordinatorState) -> str:
    journal, status = state.journal, state.status
    if state.go_back is not None:
        return state.go_back.reason
    for member in status.fenced:
        return f"{member} is out"
    if journal.outstanding is not None and status.inside:
        for member in status.fenced_next:
            return f"{member} is out, and change {journal.outstanding.number} was entered"
    if status.stuck:
        return next(iter(status.stuck.values()))
    if state.standstill:
        return f"no member gets on: {state.standstill}"
    if late := _why_late(state):
        return late
    settled = [
        member
        for member, since_ms in status.broken.items()
        if state.now_ms - since_ms >= state.settings.settle_ms
    ]
    if settled:
        return f"{settled[0]} is broken: {state.roster.states[settled[0]].broken}"
    return ""


def _why_late(state: CoordinatorState) -> str:
    """An order that was sent and is not entered, or a change that only some have entered."""
    journal, status = state.journal, state.status
    entering = status.outside if journal.outstanding is not None and status.inside else {}
    waiting = chain(status.unheard, entering)  # no list of them: there may be thousands
    reachable_ones = (m for m in waiting if state.roster.is_reachable(m))
    late = next((m for m in reachable_ones if not journal.is_fenced(m)), None)
    if late is None or journal.last is None:
        state.entering_ms = None
        state.vain_rounds = state.vain_rounds if status.unheard or entering else 0
        return ""
    if state.entering_ms is None:
        state.entering_ms = state.now_ms
    allowed_ms = _allowed_ms(state)
    if state.now_ms - state.entering_ms < allowed_ms:
        return ""
    state.entering_ms, state.vain_rounds = None, state.vain_rounds + 1
    number = journal.outstanding.number if journal.outstanding is not None else journal.last.number
    return f"{late} has not entered order {number} within {allowed_ms} ms"


def _allowed_ms(state: CoordinatorState) -> int:
    """For entering the last order."""
    last = state.journal.last
    factor = 4 if last is not None and last.kind in ("start", "restore") else 1
    return factor * state.settings.enter_ms * int(2**state.vain_rounds)


def entering_deadline_ms(state: CoordinatorState) -> list[int]:
    """When the order that is being entered is late; none if none is."""
    return [] if state.entering_ms is None else [state.entering_ms + _allowed_ms(state)]


def decide_if_answered(state: CoordinatorState, blame: Blame) -> None:
    held = state.round
    if held is None or held.waiting or not _is_stopped(state, held):
        return
    if state.go_back is not None and state.snapshots.newest_loadable(state.go_back.before):
        _roll_back(state, held, state.go_back.reason)
        return
    state.go_back = None  # the version went meanwhile: the job goes on without that step
    made = decide(state.journal, held.reports, held.number, state.settings.mode)
    if isinstance(made, NeedsRestore):
        _roll_back(state, held, made.reason)
        return
    if made.is_entered:
        assert state.journal.outstanding is not None
        state.record(EnteredByAll(state.journal.outstanding.number, entered_at(state)))
    _finish(state, made)
    blame.progressed(made.step)


def _is_stopped(state: CoordinatorState, held: Round) -> bool:
    """Can no step be finished any more in the epochs that may be in force? Each needs all its
    members, so one that has answered, or is dead for sure, is enough. A verdict is no proof:
    a worker that is fenced and cannot be reached may go on.
    """
    last, change = state.journal.last, state.journal.outstanding
    orders = [order for order in (last, change) if order is not None]
    if change is not None and any(r.epoch == change.number for r in held.reports.values()):
        # All have voted for the change: no step is begun any more in the epoch before.
        orders = [change]
    return all(
        any(member in held.reports or _is_dead(state, member) for member in members_of(order))
        for order in orders
    )


def _is_dead(state: CoordinatorState, member: Member) -> bool:
    """Its agent does not have its process any more, or went with it."""
    node = state.roster.nodes.get(node_of(member.name))
    is_gone = member not in state.roster.states
    return node is not None and (node.is_dead or (node.is_connected and is_gone))


def entered_at(state: CoordinatorState) -> int:
    """The step that the outstanding change began with."""
    assert state.journal.outstanding is not None
    number = state.journal.outstanding.number
    states = state.roster.states
    return min(states[m].entered_at for m in state.status.inside if states[m].epoch == number)


def _finish(state: CoordinatorState, made: RoundDecision) -> None:
    state.round, state.entering_ms = None, state.now_ms
    state.shares = made.shares
    state.status.has_shares = True
    state.record(Ordered(made.order, made.step, made.target))
    state.decided(f"order {made.order.number}: {made.reason}", order=str(made.order.number))


def _roll_back(state: CoordinatorState, held: Round, reason: str) -> None:
    """To the newest whole snapshot, with the workers that are available; waits until they are
    enough. A job that is asked to stop loads nothing any more: it ends there.
    """
    if state.journal.stop is not None:
        _stop_there(state, held, reason)
        return
    use_spares(state)
    available = state.available()
    target = reachable(state.journal.wanted, available)
    if target is None:
        fail_if_hopeless(state, reason, available)
        return
    incarnations = {name: available[name] for name in target.workers}
    order = _begin_anew(state, held, target, incarnations, reason)
    if order is None:
        return
    step = order.at_step if order.kind == "start" else order.version
    _finish(state, RoundDecision(order=order, step=step, shares={}, reason=order.reason))


def _stop_there(state: CoordinatorState, held: Round, reason: str) -> None:
    snapshot = state.snapshots.newest_loadable()
    if snapshot is not None:
        state.finish(snapshot.step, f"asked to stop, and {reason}")
    elif _has_no_step(state, held):
        state.finish(state.settings.first_step, "asked to stop before the first step")
    else:
        _fail_without_snapshot(state, reason)


def _begin_anew(
    state: CoordinatorState, held: Round, target: Plan, incarnations: dict[str, int], reason: str
) -> Order | None:
    order = Order(
        number=held.number,
        kind="start",
        plan=FullPlan(format_plan(target)),
        incarnations=incarnations,
        lineage=held.number,
        at_step=state.settings.first_step,
        reason=reason,
    )
    before = state.go_back.before if state.go_back is not None else None
    snapshot = state.snapshots.newest_loadable(before)
    if snapshot is not None:
        if state.go_back is not None:
            state.non_finite.went_back(snapshot.step)
            state.go_back = None
        why = f"back to version {snapshot.step}: {reason}"
        return order_with(order, version=snapshot.step, agreed_in=snapshot.agreed_in, reason=why)
    if _has_no_step(state, held):
        return order
    _fail_without_snapshot(state, reason)
    return None


def _fail_without_snapshot(state: CoordinatorState, reason: str) -> None:
    if not _unheard_nodes(state):
        state.fail(f"state is lost ({reason}), and no snapshot is whole", is_state_lost=True)


def _has_no_step(state: CoordinatorState, held: Round) -> bool:
    """Is no step done since the job began, as its members report? Then it begins again. Joiners
    and workers without a seat are at version 0 in any case, and prove nothing. Where no member is
    left to report, what their agents were told of steps counts: a step that died with all who had
    done it, before any word of it, is nothing that would be missed. One that says why it failed
    would fail again.
    """
    last, first = state.journal.last, state.settings.first_step
    assert last is not None
    reports = [held.reports[member] for member in members_of(last) if member in held.reports]
    if last.kind != "start":
        return False
    if not reports:
        is_untold = state.steps.next_step == first and not state.last_words
        return is_untold and not _unheard_nodes(state)
    return all(is_late(state.journal, report) or report.version == first for report in reports)


def order_with(order: Order, *, version: int, agreed_in: int, reason: str) -> Order:
    return Order(
        number=order.number,
        kind="restore",
        plan=order.plan,
        incarnations=order.incarnations,
        lineage=order.lineage,
        version=version,
        agreed_in=agreed_in,
        reason=reason,
    )


def _unheard_nodes(state: CoordinatorState) -> list[str]:
    """Nodes whose snapshots may still turn up."""
    after_ms = state.settings.lost_after_ms
    return [
        node.name
        for node in state.roster.nodes.values()
        if not node.is_connected and not node.is_lost(state.now_ms, after_ms)
    ]
