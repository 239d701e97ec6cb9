"""Persistent checkpoints, written by one process for the whole job.

The coordinator offers every version that has become whole to the agent of one node; that has
a process forked from the fork server, which has torch, and passes them on. What is due is written
from the memory of all nodes, those on other hosts through their agents.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import valid_checkpoints
from holdfast.snapshot.disk.persist import partial_folder, write_checkpoint
from holdfast.snapshot.disk.persister import Attempt, Due, Persister
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.recover import loop_values, open_loadable
from holdfast.snapshot.loadable import LoadableVersion, find_loadable
from holdfast.snapshot.manifest import survey
from holdfast.snapshot.memory.arena import SHARED_MEMORY, Arena
from holdfast.snapshot.memory.job_memory import arena_files, memories_of
from holdfast.snapshot.memory.sources import OtherHosts, Source

FEW_BYTES = 2**20
"""With no more than these left, a disk counts as full: torch's own words for it say nothing."""


class JobWriter:
    """(Writer) From whatever arenas the job has at that moment."""

    def __init__(
        self,
        job: str,
        root: Path,
        folder: Path = SHARED_MEMORY,
        others: OtherHosts | None = None,
    ) -> None:
        self._job, self._root, self._folder, self._others = job, root, folder, others
        self._pinned: list[Arena] = []
        self._elsewhere: Sequence[Source] = ()

    def hold(self, version: Version) -> bool:
        """What is pinned of it is whole."""
        if self._others is not None:
            self._elsewhere = self._others.pin(version)
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
        return self._find(version) is not None

    def release(self) -> None:
        for arena in self._pinned:
            arena.unpin()
            arena.close()
        self._pinned = []
        if self._others is not None:
            self._others.release()
        self._elsewhere = ()

    def write(self, version: Version) -> Path:
        found = self._find(version)
        if found is None:
            raise HoldfastError(f"{version} is not whole in memory any more")
        catalog, _ = open_loadable(found, self._memories())
        assert catalog is not None
        try:
            return write_checkpoint(self._root, catalog, loop_values(catalog, None))
        except (OSError, RuntimeError) as error:
            raise HoldfastError(self._explain(error, version)) from error

    def _explain(self, error: Exception, version: Version) -> str:
        """In a line; what was written of it goes, since others may need the room."""
        free = shutil.disk_usage(self._root).free if self._root.is_dir() else 0
        shutil.rmtree(partial_folder(self._root, version), ignore_errors=True)
        if isinstance(error, OSError) and error.strerror:
            return f"{self._root}: {error.strerror}"
        full = f"; {self._root} has {free} bytes left" if free < FEW_BYTES else ""
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{full}"

    def _find(self, version: Version) -> LoadableVersion | None:
        """Under one plan, if all of it is held."""
        manifests = [m for memory in self._memories() for m in memory.manifests()]
        found = find_loadable(survey(manifests), {}, lambda held: held == version)
        return next(iter(found), None)

    def _memories(self) -> list[Source]:
        here = memories_of(self._pinned)
        own = [memory.node for memory in here]
        return [*here, *(source for source in self._elsewhere if source.node not in own)]


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
        others: OtherHosts | None = None,
    ) -> None:
        """`report` is called on another thread."""
        writer = JobWriter(job, root, folder, others)
        self._persister = Persister(writer, due, report, keep_latest_k=keep_latest_k)
        newest = next(iter(valid_checkpoints(root)), Version(first_step, 0))
        self._persister.start_from(newest)

    def offer(self, version: Version, demand: str = "", every_s: float = 0.0) -> None:
        """A version is whole; `demand`: why it is to be written at once; `every_s`: the interval
        from now on, if it is another.
        """
        if every_s:
            self._persister.set_interval(every_s)
        if demand:
            self._persister.demand(version, demand)
        else:
            self._persister.offer(version)

    def close(self) -> None:
        self._persister.stop()
