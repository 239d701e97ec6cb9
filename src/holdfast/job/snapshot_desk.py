"""The coordinator process's part in snapshots: what is whole, who drops what, who persists what.

Agents say what they hold; which versions can be loaded from that is told to the machine that
decides, always as the word of a node that is connected. One node, the first that is there, writes
checkpoints for all.
"""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.control.facts import Fact, SnapshotKept
from holdfast.control.past import Past
from holdfast.control.state import Kept
from holdfast.job.arenas import HeldArena
from holdfast.job.dispatch import Dispatch
from holdfast.job.kept import KeptBoard
from holdfast.job.messages import DropArenas, Persist, Persisted
from holdfast.observe import events
from holdfast.observe.events import Event
from holdfast.snapshot.layout import Version

LAST_WRITE_S = 60.0
"""How long the end of a job waits for its last checkpoint."""


class SnapshotDesk:
    def __init__(
        self,
        board: KeptBoard | None,
        past: Past,
        dispatch: Dispatch,
        *,
        take: Callable[[Fact], None],
        tell: Callable[[Sequence[Event]], None],
        reach: Callable[[str], Sequence[HeldArena]],
        persists: bool = False,
    ) -> None:
        """`board` None: there are no snapshots. `reach` looks for what is left of a node."""
        self._reach = reach
        self._board, self._past, self._dispatch = board, past, dispatch
        self._take, self._tell, self._persists = take, tell, persists
        self._told: tuple[str, tuple[Kept, ...]] = ("", ())
        self._plan = ""
        """Under which the newest whole version is held."""
        self._newest: Version | None = None
        self._is_degraded = False
        self._persisted: Version | None = None
        self._then: Callable[[], object] | None = None

    def hear(self, node: str, arenas: Sequence[HeldArena]) -> None:
        if self._board is not None:
            self._board.hear(node, arenas)
            self._look(self._board)

    def lose(self, node: str) -> None:
        """To be called before the machine hears of it: what others hold counts on, and what of
        the node's memory can be reached without its agent.
        """
        if self._board is None:
            return
        self._board.lose(node)
        if left := self._reach(node):
            self._board.hear(node, left)
        self._look(self._board)
        if self._persists and self._is_degraded and self._newest != self._persisted:
            self._offer("redundancy is used up")

    def _look(self, board: KeptBoard) -> None:
        kept = board.kept(self._past.plans)
        node = next(iter(self._dispatch.nodes), "")
        before, self._told = self._told, (node, kept)
        if before[0] and before[0] != node:
            self._take(SnapshotKept(before[0], ()))
        if node and before != self._told:
            self._take(SnapshotKept(node, kept))
        found = [one for one in board.whole(self._past.plans) if self._is_of_history(one[0])]
        if found:
            version, plan, standing = found[0]
            self._is_degraded = standing.is_degraded
            self._follow(version, plan)

    def _is_of_history(self, version: Version) -> bool:
        return self._past.epoch_of_step(version.step - 1) == version.lineage

    def _follow(self, version: Version, plan: str) -> None:
        if plan != self._plan:
            self._plan = plan
            self._dispatch.to_all(DropArenas(version=version, plan=plan))
        is_new, self._newest = version != self._newest, version
        if self._persists and is_new:
            self._offer()

    def _offer(self, demand: str = "") -> bool:
        node, version = self._told[0], self._newest
        if not node or version is None:
            return False
        return self._dispatch.to_node(node, Persist(version=version, demand=demand))

    def connected(self, node: str, arenas: Sequence[HeldArena]) -> None:
        """To be called after the machine has heard of it, which takes its word on what it keeps
        for nothing: all is said again.
        """
        self._told = ("", ())
        self.hear(node, arenas)

    # Checkpoints.

    def written(self, message: Persisted) -> None:
        version = message.version
        told = events.Persisted(
            reason=message.reason,
            step=version.step,
            path=message.path,
            seconds=message.seconds,
            error=message.error,
        )
        self._tell([told])
        if not message.error:
            self._persisted = version
        if self._then is not None and (message.error or version == self._newest):
            self._end()

    def persist_last(self, reason: str, then: Callable[[], object]) -> None:
        """Have the newest version written, and then go on, be it written or not."""
        self._then = then
        is_due = self._persists and self._newest != self._persisted
        if not is_due or not self._offer(reason):
            self._end()
            return
        asyncio.get_running_loop().call_later(LAST_WRITE_S, self._end)

    def _end(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
