"""Memory that ended jobs have left: what there is of it, and its removal.

A run that is killed leaves its memory in place, so that the next one can go on from it. It is
left over only if no process holds the job's lock and the process that owns the memory is gone.
"""

from pathlib import Path

import msgspec

from holdfast.snapshot.memory.arena import SHARED_MEMORY
from holdfast.snapshot.memory.owners import clean, is_dead, jobs_in, names_of, note_of


class LeftMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run; several nodes of it may be on this machine."""

    run_dir: str
    """Empty: it is not known, or there is none."""
    jobs: tuple[str, ...]
    """The names under which nodes own memory."""
    num_bytes: int
    files: tuple[str, ...]
    folder: str
    """Where they are."""


def find_left(folder: Path = SHARED_MEMORY, run_dir: Path | None = None) -> list[LeftMemory]:
    """All that can be removed, or only that of one run directory."""
    by_run: dict[str, list[str]] = {}
    for job in jobs_in(folder):
        if is_dead(job, folder):
            by_run.setdefault(note_of(job, folder) or job, []).append(job)
    found: list[LeftMemory] = []
    for run, jobs in by_run.items():
        files = [path for job in jobs for path in names_of(job, folder)]
        where = run if run not in jobs else ""
        if run_dir is None or (where and Path(where).resolve() == run_dir.resolve()):
            size = sum(path.stat().st_blocks * 512 for path in files)
            names = tuple(path.name for path in files)
            left = LeftMemory(
                run_dir=where, jobs=tuple(jobs), num_bytes=size, files=names, folder=str(folder)
            )
            found.append(left)
    return found


def remove_left(left: LeftMemory) -> list[str]:
    """The names removed; nothing, if a run has taken it up meanwhile."""
    return clean(Path(left.folder), only=left.jobs)
