"""Persistent checkpoints, written by one process for the whole job.

The coordinator offers every version that has become whole to the agent of one node; that has
a process forked from the fork server, which has torch, and passes them on. What is due is written
from the memory of all nodes on this machine.
"""

from collections.abc import Callable
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import list_checkpoints
from holdfast.snapshot.disk.persist import write_checkpoint
from holdfast.snapshot.disk.persister import Attempt, Due, Persister
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.load.recover import loop_values
from holdfast.snapshot.manifest import Holding, by_version
from holdfast.snapshot.memory.arena import SHARED_MEMORY, Arena
from holdfast.snapshot.memory.job_memory import arena_files, memories_of
from holdfast.snapshot.memory.sources import NodeMemory


class JobWriter:
    """(Writer) From whatever arenas the job has at that moment."""

    def __init__(self, job: str, root: Path, folder: Path = SHARED_MEMORY) -> None:
        self._job, self._root, self._folder = job, root, folder
        self._pinned: list[Arena] = []

    def hold(self, version: Version) -> bool:
        """What is pinned of it is whole."""
        before, self._pinned = self._pinned, []
        for path in arena_files(self._job, self._folder):
            try:
                arena = Arena.open(path)
            except (HoldfastError, OSError):
                continue  # being made, or going
            if arena.pin(version):
                self._pinned.append(arena)
            else:
                arena.close()
        for arena in before:
            arena.close()  # not unpinned: it may be among those pinned now
        return self._holding(version) is not None

    def release(self) -> None:
        for arena in self._pinned:
            arena.unpin()
            arena.close()
        self._pinned = []

    def write(self, version: Version) -> Path:
        holding = self._holding(version)
        if holding is None:
            raise HoldfastError(f"{version} is not whole in memory any more")
        catalog = Catalog(holding, self._memories())
        return write_checkpoint(self._root, catalog, loop_values(catalog, None))

    def _holding(self, version: Version) -> Holding | None:
        """Of one plan, if a whole one is held."""
        manifests = [m for memory in self._memories() for m in memory.manifests()]
        groups = by_version(m for m in manifests if m.version == version)
        found = [Holding(group) for group in groups]
        return next((holding for holding in found if holding.standing().is_complete), None)

    def _memories(self) -> list[NodeMemory]:
        return memories_of(self._pinned)


class JobPersister:
    def __init__(
        self,
        job: str,
        root: Path,
        due: Due,
        report: Callable[[Attempt], None],
        *,
        keep_latest_k: int = 0,
        first_step: int = 0,
        folder: Path = SHARED_MEMORY,
    ) -> None:
        """`report` is called on another thread."""
        writer = JobWriter(job, root, folder)
        self._persister = Persister(writer, due, report, keep_latest_k=keep_latest_k)
        newest = next((found for found in list_checkpoints(root) if found.is_valid), None)
        before = newest.version if newest is not None else Version(first_step, 0)
        self._persister.start_from(before)

    def offer(self, version: Version, demand: str = "") -> None:
        """A version is whole; `demand`: why it is to be written at once."""
        if demand:
            self._persister.demand(version, demand)
        else:
            self._persister.offer(version)

    def close(self) -> None:
        self._persister.stop()
