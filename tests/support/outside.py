"""The processes of a job as seen from outside, and signals to them.

Nothing of the job is asked. A process of a job is known by the log that it writes to.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from holdfast.observe.events import Event, StepDone
from holdfast.runtime.launch.fork_server import ForkServer
from support.chaos_draw import Strike

PAUSE_S = 0.4


def processes(fork_server: ForkServer) -> dict[str, int]:
    """Pid by name (n3.g0, agent-n3, coordinator) of what runs now below a fork server."""
    found: dict[str, int] = {}
    for parent in (fork_server.pid, fork_server.light.pid):
        for child in psutil.Process(parent).children():
            try:
                if child.status() != psutil.STATUS_ZOMBIE:
                    log = os.readlink(f"/proc/{child.pid}/fd/1")
                    found[Path(log).stem] = child.pid
            except (OSError, psutil.NoSuchProcess):
                continue
    return found


def workers(fork_server: ForkServer) -> list[int]:
    return [pid for name, pid in processes(fork_server).items() if name[0] == "n"]


def send(pid: int, number: int) -> bool:
    """True: the process was there, and gets it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class SignalSender:
    """(OnEvent) Carries strikes out at their time, and counts what really happened."""

    def __init__(self, fork_server: ForkServer, strikes: Sequence[Strike]) -> None:
        self._fork_server = fork_server
        self._due = sorted(strikes, key=lambda strike: strike.after_step)
        self._threads: list[threading.Thread] = []
        self.counts: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, StepDone):
            return
        while self._due and self._due[0].after_step <= event.step:
            strike = self._due.pop(0)
            thread = threading.Thread(target=self._carry_out, args=(strike,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _carry_out(self, strike: Strike) -> None:
        time.sleep(strike.delay_s)
        found = processes(self._fork_server)
        pids = [found[name] for name in strike.targets if name in found]
        number = signal.SIGSTOP if strike.kind == "pause" else signal.SIGKILL
        hit = []
        for pid in pids:
            hit += [pid] * send(pid, number)
            time.sleep(strike.gap_s)
        self.counts[strike.kind] += bool(hit)
        if strike.kind == "pause":
            time.sleep(PAUSE_S)
            for pid in hit:
                send(pid, signal.SIGCONT)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
