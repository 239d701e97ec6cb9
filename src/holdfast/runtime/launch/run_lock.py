"""One run at a time in a run directory.

The launcher locks the file `lock` and hands the descriptor down to the fork servers, so all
processes of the job hold it: it is free when the last of them is gone, however they ended. The file
names the launcher. If that one lives, a second run is refused at once; if it is dead, its processes
are ending, and the next run waits for them.
"""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.snapshot.memory.arena_file import process_start

LOCK = "lock"
ENDING_DEADLINE_S = 20.0
"""How long processes of a dead launcher may take to end."""
LOOK_AGAIN_S = 0.05


class RunLock:
    """A context manager; `fileno` is for processes that are part of the run."""

    def __init__(self, folder: Path, deadline_s: float = ENDING_DEADLINE_S) -> None:
        self._fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(self._fd, folder, deadline_s)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()} {process_start(os.getpid())}\n".encode(), 0)
        except BaseException:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        return self._fd

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *args: object) -> None:
        os.ftruncate(self._fd, 0)  # this process may go on, and run the next job here
        os.close(self._fd)


def _lock(
    fd: int, folder: Path, deadline_s: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    end = time.monotonic() + deadline_s
    while not _try_lock(fd):
        check_free(folder)
        if time.monotonic() >= end:
            raise HoldfastError(
                f"{folder} is in use: its launcher is dead, but other processes of its job have "
                f"not ended within {deadline_s:g} s"
            )
        sleep(LOOK_AGAIN_S)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def check_free(folder: Path) -> None:
    """Refused where the launcher of another run lives."""
    if (pid := living_launcher(folder)) is not None:
        raise HoldfastError(
            f"{folder} is in use: process {pid} runs a job in it; stop that one, or choose "
            f"another job.run_dir"
        )


def living_launcher(folder: Path) -> int | None:
    """The process that runs a job in this directory; None: there is none."""
    try:
        pid, start = (int(word) for word in (folder / LOCK).read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return pid if start and process_start(pid) == start else None
