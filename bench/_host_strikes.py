"""What is done to a job on hosts, and how long it takes until training is as before: read from the
stamps of the job's own record, which all hosts share.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.observe.journal import read_lines

PATIENCE_S = 120.0


class Record:
    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def steps(self) -> list[dict[str, Any]]:
        return self._lines("metrics.jsonl")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self._lines("journal.jsonl") if line["event"] == kind]

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self._run_dir / name
        return list(read_lines(path)) if path.is_file() else []

    def wait_steps(self, more: int) -> None:
        """So many steps are done from now on."""
        target = len(self.steps()) + more
        wait(lambda: len(self.steps()) >= target, f"{more} steps")

    def next_commit_s(self, at_s: float, lost: str) -> float:
        """Seconds to the first step that was completed without a worker."""
        recovered = wait(lambda: self._after("recovered", at_s, "lost", lost), f"{lost} given up")
        epoch = recovered["epoch"]
        step = wait(
            lambda: next((s for s in self.steps() if s["epoch"] >= epoch), None), "the next step"
        )
        return stamp_s(step) - at_s

    def joined_s(self, at_s: float, worker: str) -> float:
        """Seconds until it trains."""
        changed = wait(
            lambda: self._after("plan_changed", at_s, "joining", worker), f"{worker} to join"
        )
        return stamp_s(changed) - at_s

    def successor_s(self, at_s: float) -> float:
        started = wait(
            lambda: next(
                (e for e in self.events("coordinator_started") if stamp_s(e) > at_s), None
            ),
            "another coordinator",
        )
        return stamp_s(started) - at_s

    def _after(self, kind: str, at_s: float, key: str, worker: str) -> dict[str, Any] | None:
        found = (e for e in self.events(kind) if stamp_s(e) > at_s and worker in e[key])
        return next(found, None)


def stamp_s(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


def wait(look: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {PATIENCE_S:g} s for {what}")
        time.sleep(0.02)
    return found


def worker_process(folder: Path, worker: str) -> int:
    """By the log that it writes to: processes of a host have other numbers there."""
    for found in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            log = os.readlink(found / "fd" / "1")
            if log.startswith(f"{folder}/") and log.endswith(f"/{worker}.log"):
                return int(found.name)
    raise RuntimeError(f"{folder} has no process of {worker}")


def kill(folder: Path, worker: str) -> float:
    """When it was done."""
    pid, at_s = worker_process(folder, worker), time.time()
    os.kill(pid, signal.SIGKILL)
    return at_s
