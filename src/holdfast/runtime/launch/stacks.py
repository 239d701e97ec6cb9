"""Where every process of a job is: the Python stacks of all its threads, on request.

Every process that is forked for a job prints its stacks into its own log when it is asked by a
signal. The launcher asks all of its descendants, each known by the log it writes to, and collects
what they have added. A process that does not answer in time is shown as the kernel sees it.
"""

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

from holdfast.runtime.launch.signals import PRINT_STACKS

ANSWER_S = 1.5
LOOK_AGAIN_S = 0.05
_OWN = ('  File "', "Thread 0x", "Current thread 0x", "  <", "  ...")


def all_stacks(answer_s: float = ANSWER_S) -> list[str]:
    """Lines for people, of this process and all below it."""
    waiting = _ask()
    end = time.monotonic() + answer_s
    lines = [f"launcher, process {os.getpid()}:", *_here()]
    answers: dict[int, list[str]] = {}
    while len(answers) < len(waiting) and time.monotonic() < end:
        time.sleep(LOOK_AGAIN_S)
        for pid, (log, size) in waiting.items():
            if pid not in answers and (found := _added(log, size)):
                answers[pid] = found
    for pid, (log, _) in sorted(waiting.items(), key=lambda item: item[1][0].stem):
        lines.append(f"{log.stem}, process {pid}:")
        lines += answers.get(pid) or [f"  no answer: {_kernel_view(pid)}"]
    return lines


def _ask() -> dict[int, tuple[Path, int]]:
    """The processes that were asked, their logs, and how long those were before."""
    asked: dict[int, tuple[Path, int]] = {}
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            log = Path(os.readlink(f"/proc/{pid}/fd/2"))
            if log.suffix == ".log":
                asked[pid] = (log, log.stat().st_size)
                os.kill(pid, PRINT_STACKS)
    return asked


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if stat := _stat(int(folder.name)):
            parents.setdefault(int(stat[1]), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found[1:]


def _stat(pid: int) -> list[str]:
    """The fields of the kernel after the name, which may contain anything; empty: it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _added(log: Path, size: int) -> list[str]:
    """The stacks among the lines since then, once the last of them is there in full."""
    with log.open("rb") as file:
        file.seek(size)
        text = file.read().decode(errors="replace")
    if not text.endswith("\n") or "Current thread 0x" not in text:
        return []
    return [f"  {line}" for line in text.splitlines() if line.startswith(_OWN)]


def _kernel_view(pid: int) -> str:
    words = {
        "R": "it computes",
        "S": "it sleeps",
        "D": "it waits for a device",
        "T": "it is stopped",
    }
    stat = _stat(pid)
    return words.get(stat[0], f"its state is {stat[0]}") if stat else "it has ended"


def _here() -> list[str]:
    """Of this process; the innermost call first, as the others print theirs."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"  Thread {names.get(ident, ident)}:")
        for entry in reversed(traceback.extract_stack(frame)):
            lines.append(f'    File "{entry.filename}", line {entry.lineno} in {entry.name}')
    return lines
