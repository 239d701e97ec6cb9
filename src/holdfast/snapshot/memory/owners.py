"""Who owns the arenas of a node, and when their memory may be given back.

The agent makes the arenas of its job and its death leaves them in place, for its successor to
`adopt`. So that memory is not lost for ever when no successor comes, `holdfast clean` removes
what is *provably* dead: the owner's process is gone (its id and its start, since ids are used
again), and no process holds the job's lock. Every process of a job that wants the memory kept holds
that lock, shared; the kernel lets go of it when the process ends, however it ends.

    holdfast-<job>-<worker>~<plan>          a worker's arena, under one plan
    holdfast-<job>-<worker>@<node>~<plan>   the copy of it that <node> keeps
    holdfast-<job>-<worker>~<plan>.staging  what light versions of it are made from
    holdfast-<job>.lock                     the job's lock on this node
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import ArenaLayout
from holdfast.snapshot.memory.arena import SHARED_MEMORY, Arena
from holdfast.snapshot.memory.arena_file import process_start, read_owner

PREFIX = "holdfast-"
_LOCK = ".lock"
_PARTIAL = ".part"
STAGING = ".staging"
_JOB = re.compile(r"[A-Za-z0-9_.-]+")


def arena_name(job: str, layout: ArenaLayout) -> str:
    """The plan is in it: while one plan takes over from another, a worker has two arenas."""
    check_job(job)
    keeper = f"@{layout.node}" if layout.is_copy else ""
    plan = f"~{layout.plan[:8]}" if layout.plan else ""
    return f"{PREFIX}{job}-{layout.worker}{keeper}{plan}{STAGING if layout.is_staging else ''}"


def check_job(job: str) -> None:
    if _JOB.fullmatch(job) is None or job.endswith(_LOCK):
        raise HoldfastError(f"{job!r} is no name for a job: letters, digits, '_', '.' and '-'")


class JobLock:
    """Held by every process of a job on this node; a context manager."""

    def __init__(self, job: str, folder: Path = SHARED_MEMORY, *, note: str = "") -> None:
        """`note`: for people, kept in the file: the directory of the run."""
        check_job(job)
        self.path = folder / f"{PREFIX}{job}{_LOCK}"
        self._fd = _lock(self.path, fcntl.LOCK_SH)
        if note:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, note.encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "JobLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _lock(path: Path, how: int) -> int:
    """A locked descriptor. Between opening and locking the file may have been removed by a
    cleaner; then the lock means nothing and it is tried again.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
            if _is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def files_of(job: str, folder: Path = SHARED_MEMORY) -> list[Path]:
    """The arenas of a job on this node that hold versions."""
    found = (path for path in sorted(folder.iterdir()) if _job_of(path) == job)
    return [path for path in found if path.suffix not in (_LOCK, _PARTIAL, STAGING)]


def staging_of(job: str, folder: Path = SHARED_MEMORY) -> list[Path]:
    """What versions of a job are made from on this node."""
    return [path for path in names_of(job, folder) if path.suffix == STAGING]


def jobs_in(folder: Path = SHARED_MEMORY) -> list[str]:
    """The jobs that have names there, living or dead."""
    jobs = dict.fromkeys(_job_of(path) for path in sorted(folder.iterdir()))
    return [job for job in jobs if job is not None]


def adopt(job: str, folder: Path = SHARED_MEMORY) -> tuple[list[Arena], list[str]]:
    """Take over the arenas a dead agent left, and what was wrong with others. Those that cannot
    be read are left alone.
    """
    arenas: list[Arena] = []
    complaints: list[str] = []
    for path in files_of(job, folder):
        try:
            arena = Arena.open(path)
        except (HoldfastError, OSError) as error:
            complaints.append(f"{path.name}: {error}")
            continue
        pid, _ = arena.owner
        if pid != os.getpid() and _owner_lives(arena.fd):
            arena.close()
            for other in arenas:
                other.close()
            raise HoldfastError(f"{path} belongs to process {pid}, which lives: stop it first")
        arena.take_over()
        arena.unpin()
        arenas.append(arena)
    return arenas, complaints


def remove(job: str, folder: Path = SHARED_MEMORY) -> list[str]:
    """The job has ended: its names go, the memory with the last process that maps it."""
    return _unlink(iter(names_of(job, folder)))


def clean(
    folder: Path = SHARED_MEMORY,
    spare: Collection[str] = (),
    only: Collection[str] | None = None,
) -> list[str]:
    """Remove what provably dead jobs left, except of those named, or only of those; the names
    removed.
    """
    removed: list[str] = []
    for job in jobs_in(folder) if only is None else only:
        if job not in spare:
            with _locked_if_dead(job, folder) as is_locked:
                removed += remove(job, folder) if is_locked else []
    return removed


def is_dead(job: str, folder: Path = SHARED_MEMORY) -> bool:
    """Provably: no process holds its lock, and the owners of its memory are gone."""
    with _locked_if_dead(job, folder) as is_locked:
        return is_locked


@contextlib.contextmanager
def _locked_if_dead(job: str, folder: Path) -> Iterator[bool]:
    path = folder / f"{PREFIX}{job}{_LOCK}"
    was_there = path.exists()
    try:
        fd = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield not any(_path_is_owned(path) for path in files_of(job, folder))
    finally:
        if not was_there:
            path.unlink(missing_ok=True)
        os.close(fd)


def note_of(job: str, folder: Path = SHARED_MEMORY) -> str:
    """What its processes have said of it; empty: nothing."""
    try:
        return (folder / f"{PREFIX}{job}{_LOCK}").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def names_of(job: str, folder: Path = SHARED_MEMORY) -> list[Path]:
    """All that a job has there: arenas, those that were being made, and its lock."""
    return [path for path in sorted(folder.iterdir()) if _job_of(path) == job]


def _path_is_owned(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return _owner_lives(fd)
    finally:
        os.close(fd)


def _owner_lives(fd: int) -> bool:
    """Whether its process runs; not, if the file is too short to name one."""
    owner = read_owner(fd)
    return owner is not None and owner[1] != 0 and process_start(owner[0]) == owner[1]


def _job_of(path: Path) -> str | None:
    """By its name; None if it is none of ours."""
    name = path.name.removesuffix(_PARTIAL)
    if not name.startswith(PREFIX):
        return None
    name = name.removeprefix(PREFIX)
    if name.endswith(_LOCK):
        return name.removesuffix(_LOCK)
    job, dash, _ = name.rpartition("-")
    return job if dash and job else None


def _unlink(paths: Iterator[Path]) -> list[str]:
    removed: list[str] = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed.append(path.name)
    return removed
