"""The arenas of one node, as its agent has them.

The agent owns the files, so that they outlive any worker; a successor of the agent takes them over.
They go with the job, or with the node: a test that loses a node has to lose its memory too.
"""

import contextlib
import logging
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import ArenaLayout, Version
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.memory.arena import SHARED_MEMORY, Arena
from holdfast.snapshot.memory.arena_file import has_name
from holdfast.snapshot.memory.owners import (
    JobLock,
    adopt,
    arena_name,
    files_of,
    remove,
    staging_of,
)
from holdfast.snapshot.memory.sources import NodeMemory

Layouts = tuple[ArenaLayout, ...]

log = logging.getLogger(__name__)


class NodeArenas:
    def __init__(self, job: str, folder: Path = SHARED_MEMORY) -> None:
        """`job`: of this node alone. What an agent before this one left is taken over."""
        self._job, self._folder = job, folder
        self._lock = JobLock(job, folder)
        self._turn = threading.Lock()
        """Arenas are made beside the agent's loop: that may take a while."""
        for path in staging_of(job, folder):
            path.unlink(missing_ok=True)  # whose workers ended with the agent before this one
        found, complaints = adopt(job, folder)
        for line in complaints:
            log.warning("%s", line)
        self._arenas = {Path(arena.name).name: arena for arena in found}

    def make(self, layouts: Sequence[ArenaLayout]) -> Path:
        """Arenas for all of them, where there are none yet; the path of the first."""
        with self._turn:
            self._forget_lost()
            paths = [self._make(layout) for layout in layouts]
        return paths[0]

    def path_of(self, layout: ArenaLayout) -> Path:
        return self._folder / arena_name(self._job, layout)

    def _forget_lost(self) -> None:
        """Whose file was removed by another process: its memory cannot be reached any more."""
        for name in [name for name, arena in self._arenas.items() if not has_name(arena.fd)]:
            self._arenas.pop(name).close()

    def _make(self, layout: ArenaLayout) -> Path:
        name = arena_name(self._job, layout)
        known = self._arenas.get(name)
        if known is not None and known.layout.digest != layout.digest:
            self._remove(name)
            known = None
        if known is None:
            self._arenas[name] = Arena.create(name, layout, self._folder)
        return self._folder / name

    def held(self) -> tuple[HeldArena, ...]:
        return tuple(
            _held(arena)
            for arena in list(self._arenas.values())
            if has_name(arena.fd) and not arena.layout.is_staging
        )

    def memory(self, node: str) -> NodeMemory:
        """What workers of other hosts may read."""
        arenas = [arena for arena in self._arenas.values() if not arena.layout.is_staging]
        return NodeMemory(node, [arena for arena in arenas if has_name(arena.fd)])

    def hold(self, plan: str, versions: Collection[Version]) -> bool:
        """Keep these of the node's own workers, and let go of others. Does it keep copies, too?"""
        found = [arena for arena in self._arenas.values() if arena.layout.plan == plan]
        for arena in found:
            if not arena.layout.is_copy and not arena.layout.is_staging:
                arena.hold(versions)
        return any(arena.layout.is_copy for arena in found)

    def drop_before(self, version: Version, plans: Collection[str]) -> list[str]:
        """Arenas of other plans than these, if all they hold is older."""
        with self._turn:
            old = [
                name
                for name, arena in self._arenas.items()
                if arena.layout.plan not in plans
                and all(held.age < version.age for held in arena.versions().values())
            ]
            for name in old:
                self._remove(name)
        return old

    def _remove(self, name: str) -> None:
        self._arenas.pop(name).close()
        (self._folder / name).unlink(missing_ok=True)

    def lose(self) -> None:
        """The memory of this node is gone."""
        for path in (*files_of(self._job, self._folder), *staging_of(self._job, self._folder)):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """They stay where they are."""
        for arena in self._arenas.values():
            arena.close()
        self._arenas.clear()
        self._lock.release()


def reachable(job: str, folder: Path = SHARED_MEMORY) -> tuple[HeldArena, ...]:
    """What is left here of a node whose agent does not answer: its memory may outlive it."""
    found: list[HeldArena] = []
    for path in files_of(job, folder):
        with contextlib.suppress(HoldfastError, OSError):
            arena = Arena.open(path)
            found.append(_held(arena))
            arena.close()
    return tuple(found)


def _held(arena: Arena) -> HeldArena:
    versions = tuple(sorted(arena.versions().values()))
    return HeldArena(arena.layout.worker, arena.layout.plan, versions)


def pack_layouts(layouts: Layouts) -> bytes:
    return msgspec.msgpack.encode(layouts)


def unpack_layouts(data: bytes) -> Layouts:
    try:
        return msgspec.msgpack.decode(data, type=Layouts)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"these are no layouts: {error}") from None


def remove_all(jobs: Sequence[str], folder: Path = SHARED_MEMORY) -> None:
    """Of these nodes, their locks included: the job is over."""
    for job in jobs:
        with contextlib.suppress(OSError):
            remove(job, folder)
