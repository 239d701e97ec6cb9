"""Snapshots of a job: what is whole where, which version is restored, copied, written and dropped.

Agents say what they hold. Which versions can be loaded from that is worked out in `snapshot/`, in
one place for a job and for the fuzzer; a checkpoint on disk is as good. A version that turned out
not to be loadable is passed over for the next older one, until a node comes with its memory. One
node, the first that is connected, writes checkpoints for all.

How often workers take a snapshot follows from what they say that the last ones cost. They learn of
a new interval one after the other. That does no harm: intervals are multiples of each other, so
there are always versions that all of them have. A worker that comes later is told with the first
version of its plan.
"""

from collections.abc import Mapping, Sequence

from holdfast.control.effects import Effect, Explain, NodeMessage, ToAllNodes, ToNode
from holdfast.control.journal_state import JournalState
from holdfast.control.roster import Roster
from holdfast.control.settings import SnapshotSettings
from holdfast.control.snapshots.copy_rounds import CopyRounds
from holdfast.control.snapshots.messages import (
    Copied,
    DropArenas,
    Persist,
    Persisted,
    SnapshotEvery,
)
from holdfast.snapshot.interval import IntervalRule
from holdfast.snapshot.layout import Version
from holdfast.snapshot.loadable import find_loadable
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.snapshot_index import SnapshotIndex


class SnapshotCoordination:
    def __init__(self, settings: SnapshotSettings, journal: JournalState, roster: Roster) -> None:
        """`journal` and `roster` are looked at, and kept up to date by others."""
        self._settings, self._journal, self._roster = settings, journal, roster
        options = settings.options
        self._index = SnapshotIndex(options) if options is not None else None
        self._copies = CopyRounds(self._index) if self._index is not None else None
        self._interval: IntervalRule | None = None
        if options is not None and options.every and settings.max_cost:
            self._interval = IntervalRule(options.every, settings.max_cost)
        self._on_disk: dict[Version, str] = {}
        self._refused: dict[Version, None] = {}
        self.is_changed = False
        """Something was told since the last look."""
        self._has_lost = False
        """A node, since the last look."""
        self._plan = ""
        """Under which the newest whole version is held."""
        self._newest: Version | None = None
        self._offered: Version | None = None
        self._persisted: Version | None = None

    # What is told.

    def update(
        self, node: str, arenas: Sequence[HeldArena], waits_s: Mapping[str, float] | None = None
    ) -> list[Effect]:
        """All that a node holds by now; how long its workers have waited for copies."""
        if self._index is not None:
            self._index.update(node, arenas)
            self.is_changed = True
        return self._waited(waits_s or {})

    def _waited(self, waits_s: Mapping[str, float]) -> list[Effect]:
        effects: list[Effect] = []
        for worker, seconds in waits_s.items() if self._interval is not None else ():
            assert self._interval is not None
            choice = self._interval.waited(worker, seconds)
            if choice is not None:
                every = choice.every
                effects.append(Explain(choice.reason, {"every": str(every)}))
                effects.append(ToAllNodes(SnapshotEvery(every=every)))
        return effects

    def connected(self, node: str, arenas: Sequence[HeldArena]) -> None:
        """With its memory, what could not be loaded may be whole."""
        self._refused.clear()
        if self._copies is not None:
            self._copies.begin_again()
        self.update(node, arenas)

    def lost(self, node: str, left: Sequence[HeldArena]) -> None:
        """What others hold still counts, and what of the node's memory can be reached without its
        agent.
        """
        if self._index is None or self._copies is None:
            return
        self._index.remove(node)
        if left:
            self._index.update(node, left)
        self._copies.begin_again()
        self.is_changed = self._has_lost = True

    def stepped(self, seconds: float) -> None:
        if self._interval is not None:
            self._interval.stepped(seconds)

    def copied(self, message: Copied) -> None:
        if self._copies is not None:
            self._copies.copied(message)
            self.is_changed = True

    def found_on_disk(self, checkpoints: Mapping[Version, str]) -> None:
        """All valid ones of this run, and their folders."""
        self._on_disk = dict(checkpoints)

    def written(self, message: Persisted) -> None:
        if not message.error:
            self._persisted = message.version

    def refuse(self, version: Version, reason: str) -> list[Effect]:
        """It could not be loaded."""
        if version in self._refused:
            return []
        self._refused[version] = None
        self.is_changed = True
        text = f"{reason}; the next older version is tried"
        return [Explain(text, {"version": str(version)})]

    # What follows.

    @property
    def newest_step(self) -> int | None:
        """Steps done in the newest version that is whole in memory."""
        return None if self._newest is None else self._newest.step

    def newest_loadable(self) -> Version | None:
        """What to restore: the newest version of the job's history that is whole in memory or on
        disk.
        """
        statuses = self._index.statuses(self._journal.plans) if self._index is not None else ()
        found = find_loadable(statuses, self._on_disk, self._is_of_history)
        return found[0].version if found else None

    def _is_of_history(self, version: Version) -> bool:
        is_known = version.agreed_in in self._journal.plans
        counts = self._journal.epoch_of_step(version.step - 1) == version.agreed_in
        return is_known and counts and version not in self._refused

    def look(self) -> list[Effect]:
        """What agents are to do, after something was told."""
        if self._index is None or self._copies is None or not self.is_changed:
            return []
        self.is_changed = False
        found = find_loadable(self._index.statuses(self._journal.plans), {}, self._is_of_history)
        if not found:
            return []
        newest = found[0]
        effects = self._follow(newest.version, newest.plan)
        whole = [one.version for one in found if one.plan == newest.plan]
        copy = self._copies.look(newest.plan, newest.version, whole)
        if copy is not None:
            effects.append(ToAllNodes(copy))
        # What is held for copies stays for longer, so it is what can be written.
        effects += self._offer_if_new(self._copies.held or newest.version)
        has_lost, self._has_lost = self._has_lost, False
        if has_lost and newest.is_degraded and newest.version != self._persisted:
            effects += self._offer(newest.version, "redundancy is used up")
        return effects

    def _follow(self, version: Version, plan: str) -> list[Effect]:
        self._newest = version
        if plan == self._plan:
            return []
        self._plan = plan
        told: list[NodeMessage] = [DropArenas(version=version, plan=plan)]
        if self._interval is not None:  # other waits, and perhaps other workers
            self._interval.forget()
            told.append(SnapshotEvery(every=self._interval.every))
        return [ToAllNodes(message) for message in told]

    # Checkpoints.

    def _offer_if_new(self, version: Version) -> list[Effect]:
        if version == self._offered:
            return []
        self._offered = version
        return self._offer(version)

    def _offer(self, version: Version, demand: str = "") -> list[Effect]:
        node = next(iter(self._roster.connected()), None)
        if node is None or not self._settings.persists:
            return []
        return [ToNode(node, Persist(version=version, demand=demand))]

    def persist_last(self, reason: str) -> list[Effect]:
        """Have the newest version written at the end of the job; nothing: there is nothing to
        write, or to write it.
        """
        if self._newest is None or self._newest == self._persisted:
            return []
        return self._offer(self._newest, reason)

    def is_last(self, message: Persisted) -> bool:
        """Is there nothing more to wait for at the end of the job?"""
        return bool(message.error) or message.version == self._newest
