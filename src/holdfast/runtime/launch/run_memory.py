"""The shared memory of a run directory: found again by the next run, removed when it is not needed.

Its name lies in the run directory. A run that ends with its newest version on disk, or is finished,
removes it. Whatever else ends a run leaves it in place: the next run in that directory goes on from
it, and `holdfast clean` removes it.
"""

import secrets
from contextlib import ExitStack
from pathlib import Path

import msgspec

from holdfast.observe.run_directory import CHECKPOINTS, SHARED_MEMORY, RunDirectory
from holdfast.plan.workers import node_of
from holdfast.runtime.config.snapshot_options import memory_folder
from holdfast.runtime.launch.job import Job
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.disk.checkpoints import valid_checkpoints
from holdfast.snapshot.loadable import find_loadable
from holdfast.snapshot.manifest import survey
from holdfast.snapshot.memory.arena import SHARED_MEMORY as SHARED_FOLDER
from holdfast.snapshot.memory.job_memory import arena_files, node_jobs, open_memories
from holdfast.snapshot.memory.node_arenas import remove_all
from holdfast.snapshot.memory.owners import JobLock


class KeptMemory(msgspec.Struct, frozen=True):
    """What a run leaves in memory."""

    step: int
    """Steps done in the newest whole version, which is on no disk."""
    num_bytes: int


class RunMemory:
    """A context manager. The launcher holds the locks of all nodes, so that memory of a node whose
    agent is being started again is not taken for that of a dead job.
    """

    def __init__(self, job: Job, directory: RunDirectory) -> None:
        self.name = _name_in(directory) if job.config.snapshot.every else ""
        """Of the job in shared memory; empty if it keeps no snapshots."""
        self._checkpoints = directory / CHECKPOINTS
        self._place = memory_folder(job.config)
        nodes = list(dict.fromkeys(map(node_of, job.workers))) if self.name else []
        self._nodes = [] if job.config.net.rendezvous else nodes
        """On this machine. What other hosts keep is theirs."""
        self._note = str(directory.path.absolute())
        self._locks = ExitStack()
        self.is_useless = False
        """To any run after this one."""

    @property
    def has_unsaved(self) -> bool:
        return unsaved(self.name, self._checkpoints, self._place) is not None

    def __enter__(self) -> "RunMemory":
        for node in self._nodes:
            lock = JobLock(node_job(self.name, node), self._place, note=self._note)
            self._locks.enter_context(lock)
        return self

    def __exit__(self, *args: object) -> None:
        self.settle()
        self._locks.close()

    def settle(self) -> KeptMemory | None:
        """All processes are gone: remove the memory, unless it holds what nothing else does."""
        kept = None
        if not self.is_useless:
            kept = unsaved(self.name, self._checkpoints, self._place)
        if kept is None and self.name:
            remove_all(node_jobs(self.name, self._place), self._place)
        return kept


def _name_in(directory: RunDirectory) -> str:
    """That of the runs before, or a new one."""
    path = directory / SHARED_MEMORY
    if path.is_file() and (name := path.read_text(encoding="utf-8").strip()):
        return name
    name = secrets.token_hex(8)
    directory.write(SHARED_MEMORY, name)
    return name


def unsaved(memory: str, checkpoints: Path, folder: Path = SHARED_FOLDER) -> KeptMemory | None:
    """The newest whole version in memory, if it is newer than all checkpoints."""
    if not memory:
        return None
    with open_memories(memory, folder) as memories:
        manifests = [manifest for held in memories for manifest in held.manifests()]
        found = find_loadable(survey(manifests), {})
    newest = found[0].version if found else None
    if newest is None or any(saved.age >= newest.age for saved in valid_checkpoints(checkpoints)):
        return None
    return KeptMemory(newest.step, sum(path.stat().st_size for path in arena_files(memory, folder)))
