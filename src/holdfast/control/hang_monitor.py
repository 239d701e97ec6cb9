"""When hangs are looked for, and which nodes are silent.

Hangs are looked for while all members of the last order are in it, well, and connected: a worker
that is cut off may make progress unseen. A node that is connected and yet sends nothing ends the
watch; once it was silent for long enough to be lost, its connection is ended, which has the same
consequences as any lost connection.

A hang is a suspicion, not a death. It is lifted when the worker moves: another action or step in a
beat, or the report of a step. Where no worker can be named, the suspicion is of all: a round finds
the one that does not answer.

A place is that of one process. As soon as another one of its name is to be started it means
nothing: the end of the old one may be told after the beginning of the new one.
"""

from collections.abc import Mapping

import msgspec

from holdfast.control.facts import ProgressPlace
from holdfast.control.hang_watch import HangWatch
from holdfast.control.journal_state import JournalState, members_of
from holdfast.control.report import Member
from holdfast.control.roster import Roster
from holdfast.control.settings import ControlSettings
from holdfast.control.state import WorkerState

SILENT_BEATS = 10
SHORTEST_SILENCE_MS = 1000


class Looked(msgspec.Struct, frozen=True):
    """What a look at all workers and nodes has found."""

    hung: dict[Member, str]
    lost_nodes: tuple[str, ...]
    """Silent for so long that their connections are to be ended."""
    standstill: str = ""
    """Why all wait for one that cannot be named; empty: they do not."""


class HangMonitor:
    def __init__(self, settings: ControlSettings, journal: JournalState, roster: Roster) -> None:
        """`journal` and `roster` are looked at, and kept up to date by others."""
        self._journal, self._roster = journal, roster
        self._watch = HangWatch(
            settings.heartbeat_ms, settings.hang_floor_ms, settings.hang_multiple
        )
        self._silence_ms = max(SHORTEST_SILENCE_MS, SILENT_BEATS * settings.heartbeat_ms)
        self._lost_after_ms = settings.lost_after_ms
        self.epoch = 0
        """Whose workers are watched; 0 = none."""
        self.places: dict[str, ProgressPlace] = {}
        """Where each worker was last seen."""
        self._received_ms: dict[str, int] = {}
        """When each node last sent anything."""

    # What is told.

    def received(self, node: str, now_ms: int) -> None:
        self._received_ms[node] = now_ms

    def received_ms(self, node: str, now_ms: int) -> int:
        """When it last sent something; now, if that is not known."""
        return self._received_ms.get(node, now_ms)

    def beat(self, places: Mapping[str, ProgressPlace], sent_ms: int, now_ms: int) -> list[str]:
        """The workers that have moved."""
        places = {name: place for name, place in places.items() if self._counts(name, place)}
        moved = [name for name, place in places.items() if _has_moved(self.places.get(name), place)]
        self.places.update(places)
        self._watch.beat(places, sent_ms, now_ms)
        return moved

    def stepped(self, epoch: int, seconds: float, now_ms: int) -> None:
        if epoch == self.epoch:
            self._watch.stepped(seconds, now_ms)

    def told(self, state: WorkerState) -> None:
        if self.epoch and not _trains(state, self.epoch):
            self.suspend()

    def gone(self, member: Member) -> None:
        place = self.places.get(member.name)
        if place is not None and place.incarnation == member.incarnation:
            self._watch.gone(member.name)
            del self.places[member.name]

    # What follows.

    def suspend(self) -> None:
        """Until all members train again."""
        self.epoch = 0
        self._watch.suspend()

    def begin_if_all_train(self, now_ms: int) -> None:
        last = self._journal.last
        if last is None or self.epoch == last.number or self._silent(now_ms):
            return
        states = self._roster.states
        if all(
            (state := states.get(member)) is not None
            and _trains(state, last.number)
            and self._roster.is_reachable(member)
            for member in members_of(last)
        ):
            self.epoch = last.number
            self._watch.begin(self._journal.plans[last.number], now_ms)

    def look(self, now_ms: int) -> Looked:
        silent = self._silent(now_ms)
        if silent:
            self.suspend()
        lost = tuple(n for n in silent if self._received_ms[n] < now_ms - self._lost_after_ms)
        hung: dict[Member, str] = {}
        standstill = ""
        for hang in self._watch.check(now_ms):
            if not hang.worker:
                standstill = hang.reason
                continue
            self._watch.gone(hang.worker)
            place = self.places[hang.worker]
            member = Member(hang.worker, place.incarnation)
            if member in self._roster.states and self._counts(hang.worker, place):
                hung[member] = hang.reason
        return Looked(hung, lost, standstill)

    def stopped(self) -> list[Member]:
        """Workers that are stopped by a signal now."""
        return [
            Member(name, place.incarnation)
            for name, place in self.places.items()
            if place.is_stopped and self._counts(name, place)
        ]

    def _counts(self, worker: str, place: ProgressPlace) -> bool:
        """Is it of the newest process of that name?"""
        return place.incarnation >= self._journal.started.get(worker, 0)

    def _silent(self, now_ms: int) -> list[str]:
        """Nodes that are connected, and yet have sent nothing for many intervals."""
        received_ms = self._received_ms
        return [
            node
            for node in self._roster.connected()
            if now_ms - received_ms.get(node, now_ms) > self._silence_ms
        ]


def _has_moved(before: ProgressPlace | None, now: ProgressPlace) -> bool:
    if before is None:
        return not now.is_stopped
    is_elsewhere = _where(before) != _where(now)
    return is_elsewhere or (before.is_stopped and not now.is_stopped)


def _where(place: ProgressPlace) -> tuple[int, int, int]:
    return place.incarnation, place.step, place.action


def _trains(state: WorkerState, epoch: int) -> bool:
    return state.epoch == epoch and not (state.is_frozen or state.broken or state.is_done)
