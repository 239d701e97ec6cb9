"""Who keeps the job from going on: for every question of the coordinator, the members that have not
answered it yet. Kept up member by member, so that a fact costs the same in a job of any size.
"""

from holdfast.control.journal_state import JournalState
from holdfast.control.report import Member
from holdfast.control.roster import Roster
from holdfast.control.state import WorkerState


class MemberStatus:
    def __init__(self, journal: JournalState, roster: Roster) -> None:
        self._journal, self._roster = journal, roster
        self.has_shares = False
        """The last order was decided in this term, so that it can be sent again."""
        self._clear()

    def _clear(self) -> None:
        self.unheard: dict[Member, None] = {}
        """Of the last order, not seen in it."""
        self.outside: dict[Member, None] = {}
        """Of the last and the outstanding order, not seen in the outstanding one."""
        self.inside: dict[Member, None] = {}
        """Seen in the outstanding order."""
        self.unvoided: dict[Member, None] = {}
        self.undone: dict[Member, None] = {}
        self.fenced: dict[Member, None] = {}
        """Of the last order, and out."""
        self.fenced_next: dict[Member, None] = {}
        """Of the outstanding one, and out."""
        self.stuck: dict[Member, str] = {}
        """Waits for something that only a round gives."""
        self.broken: dict[Member, int] = {}
        """Cannot go on, known since."""
        self.cut_off: dict[Member, int] = {}
        """Joins, and has lost its links before it has entered; known since."""

    def look_at_all(self, now_ms: int) -> None:
        """After a change of the last or the outstanding order."""
        broken, cut_off = self.broken, self.cut_off
        self._clear()
        members = self._journal.members()
        self.broken = {member: broken[member] for member in members if member in broken}
        self.cut_off = {member: cut_off[member] for member in members if member in cut_off}
        for member in members:
            self.look_at(member, now_ms)

    def look_at(self, member: Member, now_ms: int) -> None:
        journal = self._journal
        state = self._roster.states.get(member)
        in_last = journal.last is not None and _is_in(member, journal.last.incarnations)
        in_next = journal.outstanding is not None and _is_in(
            member, journal.outstanding.incarnations
        )
        if not (in_last or in_next):
            return
        is_fenced = journal.is_fenced(member)
        _mark(self.fenced, member, in_last and is_fenced)
        _mark(self.fenced_next, member, in_next and is_fenced)
        if journal.last is not None and in_last:
            heard = state is not None and state.epoch >= journal.last.number
            _mark(self.unheard, member, not heard)
            done = heard and state is not None and state.is_done
            _mark(self.undone, member, not done)
        if journal.outstanding is not None:
            number = journal.outstanding.number
            inside = state is not None and state.epoch == number
            _mark(self.outside, member, not inside)
            _mark(self.inside, member, inside)
            voided = state is not None and (state.voided >= number or inside)
            is_open = in_last and not voided and not is_fenced
            _mark(self.unvoided, member, is_open)
        self._look_for_trouble(member, state, now_ms)

    def _look_for_trouble(self, member: Member, state: WorkerState | None, now_ms: int) -> None:
        if state is None or self._journal.is_fenced(member):
            self.broken.pop(member, None)
            self.cut_off.pop(member, None)
            self.stuck.pop(member, None)
            return
        if state.broken and self._is_joining(member, state):
            self.cut_off.setdefault(member, now_ms)
        else:
            self.cut_off.pop(member, None)
        is_current = state.epoch in self._current_epochs() or self._is_entering(member, state)
        if state.broken and is_current:
            self.broken.setdefault(member, now_ms)
        else:
            self.broken.pop(member, None)
        why = self._why_stuck(member, state)
        if why:
            self.stuck[member] = why
        else:
            self.stuck.pop(member, None)

    def _is_joining(self, member: Member, state: WorkerState) -> bool:
        last, change = self._journal.last, self._journal.outstanding
        if last is None or change is None or _is_in(member, last.incarnations):
            return False
        return state.epoch < change.number

    def _current_epochs(self) -> tuple[int, ...]:
        orders = (self._journal.last, self._journal.outstanding)
        return tuple(order.number for order in orders if order is not None)

    def _is_entering(self, member: Member, state: WorkerState) -> bool:
        """It has answered the round that the last order ends, or had no seat before (it was just
        started, say) and so no round to answer, and has not entered the order: what broke is a
        group of that order.
        """
        last = self._journal.last
        if last is None or state.epoch >= last.number:
            return False
        if state.round == last.number:
            return True
        known = self._journal.orders.get(state.epoch)
        had_seat = state.epoch > 0 and (known is None or _is_in(member, known.incarnations))
        return not had_seat and _is_in(member, last.incarnations)

    def _why_stuck(self, member: Member, state: WorkerState) -> str:
        last = self._journal.last
        if last is None:
            return ""
        is_answered = state.round == last.number and self.has_shares
        if state.is_frozen and not is_answered:
            return f"{member} is frozen in round {state.round}"
        in_last = _is_in(member, last.incarnations)
        if in_last and last.kind == "recover" and state.epoch < last.number and not is_answered:
            return f"{member} never entered order {last.number}"
        return ""


def _is_in(member: Member, incarnations: dict[str, int]) -> bool:
    return incarnations.get(member.name) == member.incarnation


def _mark(found: dict[Member, None], member: Member, is_so: bool) -> None:
    if is_so:
        found[member] = None
    else:
        found.pop(member, None)
