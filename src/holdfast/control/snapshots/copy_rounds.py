"""Which version the nodes copy for each other, one after the other.

A version is copied once it is whole, and every node keeps it until the next one is copied, too: so
whatever node is lost, there is one that the others have completely. How many steps lie between two
depends on how fast the copies are made; training never waits for them.
"""

from collections.abc import Collection

from holdfast.control.snapshots.messages import Copied, Copy
from holdfast.snapshot.layout import Version
from holdfast.snapshot.snapshot_index import SnapshotIndex


class CopyRounds:
    def __init__(self, index: SnapshotIndex) -> None:
        self._index = index
        self._plan = ""
        self._under_way: Version | None = None
        self._done: Version | None = None

    def look(self, plan: str, newest: Version, whole: Collection[Version]) -> Copy | None:
        """The plan that versions are held under by now, and which of it can be loaded. Returns
        what to tell all nodes, if it is time for the next version.
        """
        if plan != self._plan:
            self._plan, self._under_way, self._done = plan, None, None
        if not self._index.copies(plan):
            return None
        if self._done is not None and self._index.missing_copies(self._done, plan):
            self._done = None  # it went with a node
        if self._under_way is not None and not self._index.missing_copies(self._under_way, plan):
            self._done, self._under_way = self._under_way, None
        if self._under_way in whole or newest == self._done:
            return None
        self._under_way = newest
        return Copy(version=newest, plan=plan, before=self._done)

    @property
    def held(self) -> Version | None:
        """The version that nodes keep for copies; None: none."""
        return self._under_way or self._done

    def copied(self, message: Copied) -> None:
        """If it failed, the next version is tried."""
        if message.error and message.version == self._under_way:
            self._under_way = None

    def begin_again(self) -> None:
        """A node went, or came: it may know nothing of what was under way."""
        self._under_way = None
