"""The files in which a loop's memory lies, on one node.

    <where>.<node>.<worker>~<layout>           what a rank saved
    <where>.<node>.<worker>@<keeper>~<layout>  what this node keeps for a rank of another one

`node` is the host's name, so that a loop that is started again finds what is on its host, whatever
its ranks are called now. A file belongs to the process that writes it; nothing is touched while
that process lives.
"""

import os
import re
import time
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import ArenaLayout, Version
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.memory.arena_file import process_start
from holdfast.snapshot.memory.owners import PREFIX

OWNER_WAIT_S = 20.0
"""How long processes of the run before may take to end."""
_POLL_S = 0.1
_NODE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_SUFFIX = re.compile(r"n\d+\.g\d+(@n\d+)?~[0-9a-f]+")


class InUse(HoldfastError):
    """Another loop that lives has its memory there."""


class LoopMemory:
    def __init__(self, where: Path | str, node: str) -> None:
        self._where = Path(where)
        if not _NODE.fullmatch(node):
            raise HoldfastError(f"{node!r} is no name for a node: letters, digits, '_', '-', '.'")
        if self._where.name.startswith(PREFIX):
            raise HoldfastError(
                f"{self._where}: names that begin with {PREFIX!r} are those of jobs, whose memory "
                f"is removed when they are dead; use another"
            )
        if not self._where.parent.is_dir():
            raise HoldfastError(f"{self._where.parent}, where memory should lie, is no directory")
        self._prefix = f"{self._where.name}.{node}."

    def files(self) -> list[Path]:
        return sorted(
            path
            for path in self._where.parent.iterdir()
            if path.name.startswith(self._prefix)
            and _SUFFIX.fullmatch(path.name.removeprefix(self._prefix))
        )

    def open_all(self) -> tuple[list[Arena], list[str]]:
        """All that is there, and what is wrong with the rest."""
        arenas: list[Arena] = []
        complaints: list[str] = []
        for path in self.files():
            try:
                arenas.append(_await_owner(Arena.open(path), path))
            except InUse:
                raise
            except (HoldfastError, OSError) as error:
                complaints.append(f"{path.name}: {error}")
        return arenas, complaints

    def take(self, layout: ArenaLayout, loaded: Version | None) -> Arena:
        """For this process: what is there is used again, without what came after `loaded`."""
        path = self._path(layout)
        arena = None
        if path.exists():
            try:
                arena = Arena.open(path)
            except HoldfastError:
                path.unlink()  # damaged: nothing of it can be used
        if arena is not None and arena.layout != layout:
            arena.close()
            path.unlink()
            arena = None
        if arena is None:
            arena = Arena.create(path.name, layout, path.parent)
        arena.take_over()
        arena.unpin()
        arena.roll_back(loaded or Version(-1, -1))
        return arena

    def remove(self, keep_plan: str = "") -> None:
        """All files of this node, except of one layout."""
        for path in self.files():
            if not keep_plan or not path.name.endswith(f"~{keep_plan[:8]}"):
                path.unlink(missing_ok=True)

    def _path(self, layout: ArenaLayout) -> Path:
        keeper = f"@{layout.node}" if layout.is_copy else ""
        name = f"{self._prefix}{layout.worker}{keeper}~{layout.plan[:8]}"
        return self._where.with_name(name)


def _await_owner(arena: Arena, path: Path) -> Arena:
    deadline = time.monotonic() + OWNER_WAIT_S
    while True:
        pid, started = arena.owner
        if pid == os.getpid() or not started or process_start(pid) != started:
            return arena
        if time.monotonic() > deadline:
            arena.close()
            raise InUse(
                f"{path} belongs to process {pid}, which lives: stop it first, or use another path"
            )
        time.sleep(_POLL_S)
