"""All memory of a job on this machine, whichever node owns it."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.memory.arena import SHARED_MEMORY, Arena
from holdfast.snapshot.memory.owners import files_of, jobs_in
from holdfast.snapshot.memory.sources import NodeMemory

log = logging.getLogger(__name__)


def arena_files(job: str, folder: Path = SHARED_MEMORY) -> list[Path]:
    """Of all nodes of a job that are on this machine."""
    return [path for found in node_jobs(job, folder) for path in files_of(found, folder)]


def node_jobs(job: str, folder: Path = SHARED_MEMORY) -> list[str]:
    """The names under which nodes of a job own memory on this machine."""
    return [found for found in jobs_in(folder) if found.startswith(node_job(job, ""))]


@contextmanager
def open_memories(job: str, folder: Path = SHARED_MEMORY) -> Iterator[list[NodeMemory]]:
    arenas: list[Arena] = []
    for path in arena_files(job, folder):
        try:
            arenas.append(Arena.open(path))
        except (HoldfastError, OSError) as error:
            log.warning("%s cannot be used: %s", path.name, error)
    try:
        yield memories_of(arenas)
    finally:
        for arena in arenas:
            arena.close()


def memories_of(arenas: Iterable[Arena]) -> list[NodeMemory]:
    by_node: dict[str, list[Arena]] = {}
    for arena in arenas:
        by_node.setdefault(arena.layout.node, []).append(arena)
    return [NodeMemory(node, found) for node, found in by_node.items()]
