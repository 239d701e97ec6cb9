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

import msgspec

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
from holdfast.control.snapshots.placing import CopyPlacing
from holdfast.control.worker_reports import StepReport
from holdfast.plan.profile import Profile
from holdfast.snapshot.checkpoint_pace import CheckpointPace
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.interval import IntervalRule
from holdfast.snapshot.layout import Version
from holdfast.snapshot.loadable import find_loadable
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.protects import HolderSpread, JobProtection, protection_of, spread_of
from holdfast.snapshot.snapshot_index import SnapshotIndex
from holdfast.snapshot.survival import columns_of

PACE_MS = 60_000
"""How often calm time is looked at."""


class FirstVersion(msgspec.Struct, frozen=True):
    """What a run that goes on begins with, and why; None: from the start."""

    version: Version | None
    reason: str


class SnapshotCoordination:
    def __init__(self, settings: SnapshotSettings, journal: JournalState, roster: Roster) -> None:
        """`journal` and `roster` are looked at, and kept up to date by others."""
        self._settings, self._journal, self._roster = settings, journal, roster
        options = settings.options
        self._index = SnapshotIndex(options) if options is not None else None
        self._copies = CopyRounds(self._index) if self._index is not None else None
        self._interval: IntervalRule | None = None
        self._placing = CopyPlacing() if options is not None else None
        self._pace: CheckpointPace | None = None
        if options is not None and settings.persists and settings.checkpoint_every_s:
            self._pace = CheckpointPace(settings.checkpoint_every_s)
        self._paced: tuple[tuple[str, int], int] = ("", 0), 0
        """Plan and losses for which the interval of checkpoints was looked at last, and when."""
        self._copied = CopyCost()
        """Since the last step."""
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
        self._asked = ""
        """Why the next whole version is to be written."""
        self._spreads: tuple[int, HolderSpread] | None = None
        """Of the plan of the last order, by its number."""

    # What is told.

    def update(
        self, node: str, arenas: Sequence[HeldArena], costs: Mapping[str, CopyCost] | None = None
    ) -> list[Effect]:
        """All that a node holds by now; what copies of its workers came to."""
        if self._index is not None and self._copies is not None:
            if self._index.update(node, arenas):
                # It may have had no room for copies when they were asked for, and kept silent.
                self._copies.begin_again()
            self.is_changed = True
        return self._spent(costs or {})

    def _spent(self, costs: Mapping[str, CopyCost]) -> list[Effect]:
        effects: list[Effect] = []
        for worker, cost in costs.items():
            self._copied = self._copied.beside(cost)
            choice = self._interval.waited(worker, cost.wait_s) if self._interval else None
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

    def stepped(self, seconds: float) -> CopyCost:
        """A step is done. What has been copied since the one before."""
        if self._interval is not None:
            self._interval.stepped(seconds)
        copied, self._copied = self._copied, CopyCost()
        return copied

    def place_copies(self, report: StepReport, profile: Profile) -> list[Effect]:
        """A step is done, and things take what `profile` says by now."""
        placing = self._placing
        told = placing.stepped(report.epoch, report.step, profile) if placing is not None else None
        return [ToAllNodes(told)] if told is not None else []

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

    def newest_loadable(self, before: int | None = None) -> Version | None:
        """What to restore: the newest version of the job's history that is whole in memory or on
        disk, and has fewer steps than `before`, if that is given.
        """
        statuses = self._index.statuses(self._journal.plans) if self._index is not None else ()
        found = find_loadable(statuses, self._on_disk, self._is_of_history)
        versions = [one.version for one in found if before is None or one.version.step < before]
        return versions[0] if versions else None

    def choose_first(self) -> FirstVersion:
        """Of a run that goes on in the journal of runs before it."""
        statuses = self._index.statuses(self._journal.plans) if self._index is not None else ()
        found = find_loadable(statuses, self._on_disk, self._is_of_history)
        if found and found[0].plan:
            return FirstVersion(found[0].version, "memory still holds it whole")
        newest = next((s for s in statuses if self._is_of_history(s.version)), None)
        why = "memory holds nothing of it"
        if newest is not None and not newest.is_complete:
            why = f"in memory, version {newest.version.step} is not whole ({newest.reason})"
        if found:
            return FirstVersion(found[0].version, f"checkpoint {found[0].checkpoint}; {why}")
        return FirstVersion(None, f"from the start: there is no valid checkpoint, and {why}")

    def _is_of_history(self, version: Version) -> bool:
        is_known = version.agreed_in in self._journal.plans
        counts = self._journal.epoch_of_step(version.step - 1) == version.agreed_in
        if not counts and version.agreed_in == self._journal.unresolved:
            counts = version.step > self._journal.step
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
        if self._asked:
            asked, self._asked = self._asked, ""
            effects += self.persist_now(asked)
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

    # Protection.

    @property
    def is_awaited(self) -> bool:
        """Snapshots are made, and none is whole yet."""
        options = self._settings.options
        return options is not None and options.every > 0 and self._newest is None

    def protection(self, epoch: int) -> JobProtection:
        """What the job survives the loss of, in this epoch."""
        plan = self._journal.plans[epoch]
        if self._spreads is None or self._spreads[0] != epoch:
            self._spreads = epoch, spread_of(plan)
        statuses = self._index.statuses(self._journal.plans) if self._index is not None else ()
        in_memory = [one for one in statuses if self._is_of_history(one.version)]
        on_disk = any(self._is_of_history(version) for version in self._on_disk)
        return protection_of(plan, self._spreads[1], in_memory, has_checkpoint=on_disk)

    # Checkpoints.

    def _offer_if_new(self, version: Version) -> list[ToNode]:
        if version == self._offered:
            return []
        self._offered = version
        return self._offer(version)

    def _offer(
        self, version: Version, demand: str = "", *, is_asked_for: bool = False
    ) -> list[ToNode]:
        """`is_asked_for`: also where no checkpoints are written otherwise."""
        node = next(iter(self._roster.connected()), None)
        if node is None or not (self._settings.persists or is_asked_for):
            return []
        every_s = self._pace.interval_s if self._pace is not None else 0.0
        return [ToNode(node, Persist(version=version, demand=demand, every_s=every_s))]

    def node_died(self) -> None:
        """For good, or its memory is: what checkpoints are for."""
        if self._pace is not None:
            self._pace.lost()

    def pace_checkpoints(self, now_ms: int) -> list[Effect]:
        """Set their interval by the failures that were seen."""
        if self._pace is None or self._index is None:
            return []
        self._pace.passed(now_ms, len(self._roster.connected()))
        key = (self._plan, self._pace.num_lost)
        if key != self._paced[0] or now_ms - self._paced[1] >= PACE_MS:
            self._paced = key, now_ms
            columns = tuple(columns_of(self._index.layouts(self._plan)))
            reason = self._pace.look(columns)
            if reason:
                return [Explain(reason, {"every_s": f"{self._pace.interval_s:.3g}"})]
        return []

    def persist_now(self, reason: str) -> list[ToNode]:
        """The newest version, because it was asked for; or the next one, if there is none yet."""
        if self._newest is None:
            self._asked = reason
        if self._newest is None or self._newest == self._persisted:
            return []
        return self._offer(self._newest, reason, is_asked_for=True)

    def persist_last(self, reason: str, *, is_stopped: bool = False) -> list[ToNode]:
        """Have the newest version written at the end of the job: of one that is stopped in any
        case. Nothing: there is nothing to write, or to write it.
        """
        if self._newest is not None and self._newest in self._on_disk:
            return []
        return self.persist_now(reason) if is_stopped or self._settings.persists else []

    def is_last(self, message: Persisted) -> bool:
        """Is there nothing more to wait for at the end of the job?"""
        return bool(message.error) or message.version == self._newest
