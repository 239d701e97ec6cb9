"""The coordinator process's part in snapshots: what is whole, who drops what, who persists what.

Agents say what they hold; which versions can be loaded from that, or from a checkpoint, is told to
the machine that decides, always as the word of a node that is connected. A version that turned out
not to be loadable is not told any more, so the next older one is tried. One node, the first that is
there, writes checkpoints for all.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.control.facts import Fact, SnapshotKept
from holdfast.control.report import Slot
from holdfast.control.state import Kept
from holdfast.control.view import CoordinatorView
from holdfast.observe import events
from holdfast.observe.events import Event
from holdfast.observe.run_directory import CHECKPOINTS
from holdfast.plan.exchanges import plan_exchanges
from holdfast.plan.plan import Plan
from holdfast.runtime.config.snapshot_options import snapshot_options
from holdfast.runtime.coordinator.copy_rounds import CopyRounds
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.snapshot_interval import SnapshotIntervalControl
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.wire.snapshot_messages import Copied, DropArenas, Persist, Persisted
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.disk.checkpoints import valid_checkpoints
from holdfast.snapshot.interval import IntervalRule
from holdfast.snapshot.layout import Version
from holdfast.snapshot.loadable import LoadableVersion, find_loadable
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.memory.node_arenas import reachable
from holdfast.snapshot.snapshot_index import SnapshotIndex

LAST_WRITE_S = 60.0
"""How long the end of a job waits for its last checkpoint."""


class SnapshotCoordination:
    def __init__(
        self,
        board: SnapshotIndex | None,
        past: CoordinatorView,
        dispatch: Dispatch,
        *,
        take: Callable[[Fact], None],
        tell: Callable[[Sequence[Event]], None],
        reach: Callable[[str], Sequence[HeldArena]],
        checkpoints: Path | None = None,
        pace: SnapshotIntervalControl | None = None,
    ) -> None:
        """`board` None: there are no snapshots. `reach` looks for what is left of a node.
        `checkpoints`: where this run writes them; None: nowhere. `pace` None: the interval stays.
        """
        self._reach = reach
        self._board, self._past, self._dispatch = board, past, dispatch
        self._take, self._tell, self._checkpoints = take, tell, checkpoints
        self._on_disk = valid_checkpoints(checkpoints)
        self._slots: dict[int, tuple[Slot, ...]] = {}
        self._refused: dict[Version, None] = {}
        self._copies = CopyRounds(board, dispatch) if board is not None else None
        self._pace = pace
        self._told: tuple[str, tuple[Kept, ...]] = ("", ())
        self._plan = ""
        """Under which the newest whole version is held."""
        self._newest: Version | None = None
        self._offered: Version | None = None
        self._is_degraded = False
        self._persisted: Version | None = None
        self._then: Callable[[], object] | None = None

    def hear(
        self, node: str, arenas: Sequence[HeldArena], waits_s: Mapping[str, float] | None = None
    ) -> None:
        if self._board is not None:
            self._board.update(node, arenas)
            self._look(self._board)
        if self._pace is not None and waits_s:
            self._pace.waited(waits_s)

    def stepped(self, seconds: float) -> None:
        if self._pace is not None:
            self._pace.stepped(seconds)

    def lose(self, node: str) -> None:
        """To be called before the machine hears of it: what others hold counts on, and what of
        the node's memory can be reached without its agent.
        """
        if self._board is None:
            return
        self._board.remove(node)
        if left := self._reach(node):
            self._board.update(node, left)
        if self._copies is not None:
            self._copies.begin_again()
        self._look(self._board)
        if self._checkpoints and self._is_degraded and self._newest != self._persisted:
            self._offer("redundancy is used up")

    def _look(self, board: SnapshotIndex) -> None:
        plans, refused = self._past.plans, self._refused
        statuses = board.statuses(plans)
        found = find_loadable(statuses, self._on_disk, lambda version: version not in refused)
        kept = self._kept(found)
        node = next(iter(self._dispatch.nodes), "")
        before, self._told = self._told, (node, kept)
        if before[0] and before[0] != node:
            self._take(SnapshotKept(before[0], ()))
        if node and before != self._told:
            self._take(SnapshotKept(node, kept))
        found = find_loadable(statuses, {}, self._is_of_history)
        if found:
            version, plan = found[0].version, found[0].plan
            self._is_degraded = found[0].is_degraded
            self._follow(version, plan)
            whole = [one.version for one in found if one.plan == plan]
            # What is held for copies stays for longer, so it is what can be written.
            held = self._copies.look(plan, version, whole) if self._copies is not None else None
            self._offer_if_new(held or version)

    def _kept(self, found: Sequence[LoadableVersion]) -> tuple[Kept, ...]:
        """All that can be loaded, in the form the machine knows: a part that has all slots."""
        versions = dict.fromkeys(one.version for one in found)
        return tuple(
            Kept(worker="", version=version.step, epoch=version.agreed_in, slots=slots)
            for version in versions
            if (slots := self._all_slots(version.agreed_in)) is not None
        )

    def _all_slots(self, epoch: int) -> tuple[Slot, ...] | None:
        """None: of an unknown epoch."""
        plan = self._past.plans.get(epoch)
        if plan is not None and epoch not in self._slots:
            self._slots[epoch] = all_slots(plan)
        return self._slots.get(epoch)

    def _is_of_history(self, version: Version) -> bool:
        is_known = self._past.epoch_of_step(version.step - 1) == version.agreed_in
        return is_known and version not in self._refused

    def _follow(self, version: Version, plan: str) -> None:
        if plan != self._plan:
            self._plan = plan
            self._dispatch.to_all(DropArenas(version=version, plan=plan))
            if self._pace is not None:
                self._pace.begin_again()
        self._newest = version

    def _offer_if_new(self, version: Version) -> None:
        if self._checkpoints and version != self._offered:
            self._offered = version
            self._dispatch.to_node(self._told[0], Persist(version=version))

    def _offer(self, demand: str) -> bool:
        node, version = self._told[0], self._newest
        if not node or version is None:
            return False
        return self._dispatch.to_node(node, Persist(version=version, demand=demand))

    def connected(self, node: str, arenas: Sequence[HeldArena]) -> None:
        """To be called after the machine has heard of it, which takes its word on what it keeps
        for nothing: all is said again. With its memory, what could not be loaded may be whole.
        """
        self._told = ("", ())
        self._refused.clear()
        if self._copies is not None:
            self._copies.begin_again()
        self.hear(node, arenas)

    def copied(self, message: Copied) -> None:
        if self._copies is not None:
            self._copies.heard(message)

    def refuse(self, version: Version, reason: str) -> None:
        """It could not be loaded."""
        if self._board is not None and version not in self._refused:
            self._refused[version] = None
            told = f"{reason}; whatever is older is tried next"
            self._tell([events.Decided(reason=told, details={"version": str(version)})])
            self._look(self._board)

    # Checkpoints.

    def written(self, message: Persisted) -> None:
        version = message.version
        told = events.CheckpointWritten(
            reason=message.reason,
            step=version.step,
            path=message.path,
            seconds=message.seconds,
            error=message.error,
        )
        self._tell([told])
        if not message.error:
            self._persisted, self._on_disk = version, valid_checkpoints(self._checkpoints)
            if self._board is not None:
                self._look(self._board)
        if self._then is not None and (message.error or version == self._newest):
            self._end()

    def persist_last(self, reason: str, then: Callable[[], object]) -> None:
        """Have the newest version written, and then go on, be it written or not."""
        self._then = then
        is_due = self._checkpoints is not None and self._newest != self._persisted
        if not is_due or not self._offer(reason):
            self._end()
            return
        asyncio.get_running_loop().call_later(LAST_WRITE_S, self._end)

    def _end(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()


def all_slots(plan: Plan) -> tuple[Slot, ...]:
    return tuple(
        (unit, number)
        for unit, exchanges in enumerate(plan_exchanges(plan))
        for number in range(len(exchanges))
    )


def desk_of(
    spec: CoordinatorSpec,
    view: CoordinatorView,
    run_log: RunLog,
    dispatch: Dispatch,
    take: Callable[[Fact], None],
) -> SnapshotCoordination:
    """As the job file says."""
    snapshot, pace = spec.config.snapshot, None
    if snapshot.every and snapshot.max_cost:
        rule = IntervalRule(snapshot.every, snapshot.max_cost)
        pace = SnapshotIntervalControl(rule, dispatch, run_log.tell)
    options = snapshot_options(spec.config, spec.memory, "")
    return SnapshotCoordination(
        SnapshotIndex(options) if spec.memory else None,
        view,
        dispatch,
        take=take,
        tell=run_log.tell,
        reach=lambda node: reachable(node_job(spec.memory, node)),
        checkpoints=Path(spec.run_dir) / CHECKPOINTS if snapshot.persists else None,
        pace=pace,
    )
