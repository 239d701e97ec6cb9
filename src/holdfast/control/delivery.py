"""What every worker lacks: the one message that is due to it, and who has to be killed or started.

A message is due as long as the worker's own state does not show that it has arrived. It is sent
once per connection and place in the numbers: an agent that connects again says what its workers
know, and what they lack is sent again; so it is to a worker that has answered another freeze or
entered another order since, because it may have refused the message before.

A process that starts takes processors, and the device where it shares one, from those who complete
the broken step. So where these need no other worker, it is started when the step is done.
"""

import msgspec

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.effects import Kill, Leave, Send, Start, Stop, Void, WorkerMessage
from holdfast.control.journal_entries import Started
from holdfast.control.order import Freeze, Order
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.plan.workers import node_of

RECOVERY_MS = 1000
"""How long a process is not started, at most, because of a recovery."""


class Sender:
    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._sent: dict[str, dict[Member, tuple[str, int, int, int]]] = {}
        """By node, as what follows."""
        self._killed: dict[str, dict[Member, None]] = {}
        self._seen = -1
        self._waits_since_ms: int | None = None
        """Processes are missing, and are not started yet."""

    def forget(self, node: str) -> None:
        """A new connection: what was sent on the old one may be lost."""
        self._sent.pop(node, None)
        self._killed.pop(node, None)

    def send_due(self, touched: list[Member]) -> None:
        """To all, or only to those whose own state has changed."""
        is_for_all = self._seen != self._state.changes
        self._seen = self._state.changes
        for member in list(self._state.roster.states) if is_for_all else touched:
            state = self._state.roster.states.get(member)
            if state is not None and self._state.roster.is_reachable(member):
                self._serve(member, state)

    def _serve(self, member: Member, state: WorkerState) -> None:
        if self._is_outdated(member):
            killed = self._killed.setdefault(node_of(member.name), {})
            if member not in killed:
                killed[member] = None
                reason = self._state.journal.fenced.get(member, "a newer one was started")
                self._state.effects.append(Kill(member, reason))
            return
        message = self._due(member, state) if state.said_hello else None
        if message is None:
            return
        key = (type(message).__name__, _number(message), state.epoch, state.round)
        sent = self._sent.setdefault(node_of(member.name), {})
        if sent.get(member) != key:
            sent[member] = key
            self._state.effects.append(Send(member, message))

    def _is_outdated(self, member: Member) -> bool:
        newest = self._state.journal.started.get(member.name, 0)
        return self._state.journal.is_fenced(member) or member.incarnation < newest

    def _due(self, member: Member, state: WorkerState) -> WorkerMessage | None:
        journal, held = self._state.journal, self._state.round
        if journal.ended is not None:
            return Leave()
        if held is not None and (member in held.waiting or member in held.reports):
            freeze = Freeze(held.number, held.reason, held.leaving)
            return freeze if state.round < held.number else None
        in_last = journal.last is not None and _is_in(member, journal.last)
        if journal.last is not None and in_last and state.epoch < journal.last.number:
            return self._last_order(member, journal.last)
        if (
            journal.last is not None
            and not in_last
            and self._has_to_go(member, state, journal.last)
        ):
            return journal.last
        change = journal.outstanding
        if change is not None and (in_last or _is_in(member, change)):
            return self._about_change(change, state, in_last)
        if not in_last:
            is_void = state.pending in journal.cancelled
            return Void(state.pending, "it came to nothing") if is_void else None
        return Stop(journal.stop.reason) if journal.stop is not None else None

    def _last_order(self, member: Member, last: Order) -> WorkerMessage | None:
        if last.kind != "recover":
            return last
        share = self._state.shares.get(member.name)
        return msgspec.structs.replace(last, share=share) if share is not None else None

    def _about_change(self, change: Order, state: WorkerState, votes: bool) -> WorkerMessage | None:
        """Only who votes can give it up: a joiner may be told to switch by those who have."""
        if state.epoch >= change.number or state.is_frozen:
            return None
        voided = self._state.journal.voided
        if voided is not None:
            if not votes:
                return None
            return Void(change.number, voided.reason) if state.voided < change.number else None
        return change if state.pending != change.number else None

    def _has_to_go(self, member: Member, state: WorkerState, last: Order) -> bool:
        """Does a worker without a seat think that it has one, or wait for the end of a round?"""
        if state.epoch >= last.number:
            return False
        known = self._state.journal.orders.get(state.epoch)
        return state.is_frozen or (known is not None and _is_in(member, known))

    # Processes

    def start_missing(self) -> None:
        """On nodes where something has changed."""
        state = self._state
        if not state.stirred or self._waits_for_recovery():
            return
        stirred, state.stirred = state.stirred, {}
        if state.journal.stop is not None or state.journal.ended is not None:
            return
        for node in [state.roster.nodes[name] for name in stirred if name in state.roster.nodes]:
            here = state.roster.on_node(node.name)
            alive = [member.name for member in here if not self._is_outdated(member)]
            for name in node.places if node.is_connected else ():
                if (
                    name not in alive
                    and name not in state.roster.starting
                    and state.may_start(name)
                ):
                    self._start(name)

    def _waits_for_recovery(self) -> bool:
        state = self._state
        if not _is_completing(state):
            self._waits_since_ms = None
            return False
        if self._waits_since_ms is None:
            self._waits_since_ms = state.now_ms
        return state.now_ms - self._waits_since_ms < RECOVERY_MS

    def _start(self, name: str) -> None:
        state = self._state
        member = Member(name, state.journal.started.get(name, 0) + 1)
        state.roster.started(member, state.now_ms)
        state.record(Started(member))
        state.effects.append(Start(member))


def _is_completing(state: CoordinatorState) -> bool:
    """Is a step broken that those who are left can complete?"""
    if state.round is not None:  # with all answers it would be over, if they could
        return bool(state.round.leaving and state.round.waiting)
    last = state.journal.last
    is_recovery = last is not None and last.kind == "recover"
    return is_recovery and state.steps.next_step <= state.journal.step


def _is_in(member: Member, order: Order) -> bool:
    return order.incarnations.get(member.name) == member.incarnation


def _number(message: WorkerMessage) -> int:
    if isinstance(message, Freeze):
        return message.round
    return message.number if isinstance(message, Order | Void) else 0
