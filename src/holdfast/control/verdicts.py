"""From evidence to verdict: who takes no part any more.

The exit of a process is evidence enough, and so is the word of the detector. A node that cannot be
reached is given time, unless its peers have lost it, too. A worker that does not answer a freeze in
time is gone. A broken group alone is nobody's fault, until the same worker is blamed again and
again in the same step.
"""

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.journal_entries import Fenced
from holdfast.control.report import Member
from holdfast.plan.workers import node_of


def judge(desk: CoordinatorState) -> None:
    _unreachable(desk)
    _silent(desk)
    for member, reason in list(desk.gone.items()):
        fence(desk, member, reason)
    desk.gone.clear()


def fence(desk: CoordinatorState, member: Member, reason: str) -> None:
    """A process without a seat that is gone needs no verdict: nothing depends on it."""
    is_member = member in desk.past.members()
    if desk.past.is_fenced(member) or not (is_member or member in desk.roster.states):
        return
    desk.record(Fenced(member, reason))
    desk.stir(node_of(member.name))
    desk.decided(f"{member} is out: {reason}", worker=str(member))
    if desk.round is not None:
        desk.round.without(member)


def _unreachable(desk: CoordinatorState) -> None:
    lost = desk.lost_nodes()
    if not lost:
        return
    for member in desk.past.members():
        if node_of(member.name) in lost and not desk.past.is_fenced(member):
            desk.gone.setdefault(member, f"{node_of(member.name)} cannot be reached")


def _silent(desk: CoordinatorState) -> None:
    held = desk.round
    if held is not None and desk.now_ms - held.since_ms >= desk.settings.answer_ms:
        for member in held.waiting:
            desk.gone.setdefault(member, f"it does not answer round {held.number}")


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


def accuse(desk: CoordinatorState, blame: Blame) -> None:
    """A round begins because groups broke: who is blamed, and is it enough?"""
    accusers: dict[str, int] = {}
    for member in desk.standing.broken:
        for name in desk.roster.states[member].blamed:
            accusers[name] = accusers.get(name, 0) + 1
    culprit = blame.culprit(accusers)
    for member in desk.past.members():
        if member.name == culprit and not desk.past.is_fenced(member):
            fence(desk, member, f"{accusers[culprit]} lost it again and again in one step")
