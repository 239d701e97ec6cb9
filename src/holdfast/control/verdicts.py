"""From evidence to verdict: which members take no part any more.

A death that was seen (an exit, a dead node, a process that its agent does not have any more) is
evidence enough. All else is suspicion: the detector says that a worker hangs, a node cannot be
reached for long enough (or for a moment, if its peers have lost it, too), a worker does not answer
a freeze in time, a joiner has lost the links over which it is fed, or the same worker is blamed for
broken groups again and again in the same step.

**The last holder is never given up on suspicion.** A suspect is fenced only if the job can go on
with the members that are neither fenced, suspected nor stopped by a signal. Suspects do not vouch
for each other: if all workers are silent at once, it is more likely that this machine was cut off
or paused than that all of them died. While a suspect is spared the coordinator waits; it says so
once. A suspicion ends when the worker is heard of again, or its death is seen.
"""

from collections.abc import Collection

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.job_events import SeatlessLost
from holdfast.control.journal_entries import Fenced
from holdfast.control.journal_state import members_of
from holdfast.control.order import Order
from holdfast.control.report import Member
from holdfast.control.rounds import Round
from holdfast.errors import HoldfastError
from holdfast.plan.without_workers import without_workers
from holdfast.plan.workers import node_of


def judge(state: CoordinatorState) -> None:
    is_member = state.journal.is_member
    for member, reason in sorted(state.gone.items(), key=lambda item: not is_member(item[0])):
        is_newest = state.journal.started.get(member.name) == member.incarnation
        if not fence(state, member, reason) and is_newest and not state.journal.is_fenced(member):
            state.happened([SeatlessLost(member, reason)])
        if not any(other.name == member.name for other in state.roster.states):
            state.happened(state.steps.lose(member.name))
    state.gone.clear()
    found = suspects(state)
    state.spared = {member: why for member, why in state.spared.items() if member in found}
    for member, reason in found.items():
        fence_on_suspicion(state, member, reason, found)


def suspects(state: CoordinatorState) -> dict[Member, str]:
    found = {m: why for m, why in state.suspected.items() if not state.journal.is_fenced(m)}
    state.suspected = dict(found)
    for evidence in (_unreachable(state), _silent(state), _cut_off(state), _slow_joiners(state)):
        for member, why in evidence.items():
            found.setdefault(member, why)
    return found


def fence_on_suspicion(
    state: CoordinatorState, member: Member, reason: str, doubted: Collection[Member]
) -> None:
    """Unless state would be lost with it."""
    if not _is_last_holder(state, member, doubted):
        fence(state, member, reason)
        return
    if member in state.spared:
        return
    state.spared[member] = reason
    text = f"{member} is not given up: {reason}, but no other worker holds what it holds"
    state.decided(f"{text}; waiting for it, or for its death", worker=str(member))


def _is_last_holder(state: CoordinatorState, member: Member, doubted: Collection[Member]) -> bool:
    return any(
        order.incarnations.get(member.name) == member.incarnation
        and not _has_nothing_to_lose(state, order)
        and not _can_do_without(state, order, (*doubted, member))
        for order in _orders_that_count(state)
    )


def _orders_that_count(state: CoordinatorState) -> list[Order]:
    """Those that the job may have to go on from. A change in which a step was done was entered by
    all: the order before it holds nothing any more.
    """
    last, change = state.journal.last, state.journal.outstanding
    inside = [state.roster.states[m] for m in state.status.inside if m in state.roster.states]
    if change is not None and any(worker.version > worker.entered_at for worker in inside):
        return [change]
    orders = (last, change if state.status.inside else None)
    return [order for order in orders if order is not None]


def _can_do_without(state: CoordinatorState, order: Order, doubted: Collection[Member]) -> bool:
    gone = [
        member.name
        for member in members_of(order)
        if member in doubted or member in state.stopped or state.journal.is_fenced(member)
    ]
    try:
        return bool(without_workers(state.journal.plans[order.number], gone)[0].stages)
    except HoldfastError:
        return False


def _has_nothing_to_lose(state: CoordinatorState, order: Order) -> bool:
    """No step is done before all have entered an order, and what a start or a restore begins with
    can be had again.
    """
    states = state.roster.states
    return order.kind in ("start", "restore") and any(
        member in states
        and states[member].epoch < order.number
        and state.roster.is_reachable(member)
        for member in state.status.unheard
    )


def fence(state: CoordinatorState, member: Member, reason: str) -> bool:
    """True: there was no such verdict before. A process without a seat that is gone needs none:
    nothing depends on it.
    """
    is_member = state.journal.is_member(member)
    if state.journal.is_fenced(member) or not (is_member or member in state.roster.states):
        return False
    state.record(Fenced(member, reason))
    state.stir(node_of(member.name))
    state.decided(f"{member} is out: {reason}", worker=str(member))
    if state.round is not None:
        state.round.without(member)
    return True


def _unreachable(state: CoordinatorState) -> dict[Member, str]:
    return {
        member: f"{node} cannot be reached"
        for node in state.lost_nodes()
        for member in state.journal.members_on(node)
        if not state.journal.is_fenced(member)
    }


def _silent(state: CoordinatorState) -> dict[Member, str]:
    held = state.round
    if held is None:
        return {}
    if any(member.name not in held.leaving for member in held.waiting):
        held.others_ms = None
    elif held.others_ms is None:
        held.others_ms = state.now_ms
    if state.now_ms < answer_deadline_ms(state, held):
        return {}
    return dict.fromkeys(held.waiting, f"it does not answer round {held.number}")


def answer_deadline_ms(state: CoordinatorState, held: Round) -> int:
    """Those who leave have nothing that the others need: they are not waited for as long."""
    deadline_ms = held.since_ms + state.settings.answer_ms
    if held.others_ms is None:
        return deadline_ms
    return min(deadline_ms, held.others_ms + state.settings.leaving_ms)


def cut_off_ms(state: CoordinatorState) -> int:
    """How long a joiner without links is left alone: where a source was lost, a round comes first
    and cancels the change.
    """
    return 20 * state.settings.settle_ms


def _cut_off(state: CoordinatorState) -> dict[Member, str]:
    """It holds nothing yet, so it is started again, and joins from the beginning."""
    if state.round is not None:
        return {}
    return {
        member: "it lost its links while it joined"
        for member, since_ms in state.status.cut_off.items()
        if state.now_ms - since_ms >= cut_off_ms(state)
    }


def _slow_joiners(state: CoordinatorState) -> dict[Member, str]:
    """A change waits for all its joiners, and no other is ordered meanwhile. Which of them is late
    is not known, and none holds anything yet: all are started again.
    """
    change = state.journal.outstanding
    if change is None or not change.joiners or state.steps.next_step < change.at_step:
        state.joining = (0, 0)
        return {}
    if state.joining[0] != change.number:
        state.joining = (change.number, state.now_ms)
    if state.status.inside or state.now_ms < joining_deadline_ms(state):
        return {}
    names = [joiner.name for joiner in change.joiners]
    why = f"it has not joined within {state.settings.join_within_ms} ms"
    return {Member(name, change.incarnations[name]): why for name in names}


def joining_deadline_ms(state: CoordinatorState) -> int:
    return state.joining[1] + state.settings.join_within_ms


class Blame:
    """How often in a row each worker was blamed for a broken group, without a step between."""

    def __init__(self, max_blame: int) -> None:
        self._max = max_blame
        self._rounds: dict[str, int] = {}
        self._version = -1

    def progressed(self, version: int) -> None:
        """A round was decided at this version: if steps were done since the one before, only what
        was said in this round counts.
        """
        if version > self._version:
            self._version = version
            self._rounds = dict.fromkeys(self._rounds, 1)

    def culprit(self, accusers: dict[str, int]) -> str | None:
        """`accusers`: how many blame each worker now. The one to leave out, if any."""
        self._rounds = {name: self._rounds.get(name, 0) + 1 for name in accusers}
        worn = [name for name, rounds in self._rounds.items() if rounds >= self._max]
        if not worn:
            return None
        self._rounds.clear()
        return max(worn, key=lambda name: (accusers[name], name))


def accuse(state: CoordinatorState, blame: Blame) -> None:
    """A round begins because groups broke: who is blamed, and is it enough?"""
    accusers: dict[str, int] = {}
    for member in state.status.broken:
        for name in state.roster.states[member].blamed:
            accusers[name] = accusers.get(name, 0) + 1
    culprit = blame.culprit(accusers)
    for member in state.journal.members():
        if member.name == culprit and not state.journal.is_fenced(member):
            reason = f"{accusers[culprit]} lost it again and again in one step"
            fence_on_suspicion(state, member, reason, suspects(state))
