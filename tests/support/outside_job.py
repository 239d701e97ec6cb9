"""`holdfast run` in a network and on a disk of its own, seen and struck from outside.

What runs inside is not asked. A process is known by what it is called or by the log it writes to;
whether the job gets on, by whether its files grow.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from support.command_runs import TINY, command, memory_of
from support.hosts import run
from support.outside_draw import SHAPES, Blow, OutsideRun

STEPS = 60
DISK_MB = 48
MARK = "HOLDFAST_OUTSIDE_RUN"
DESCRIPTORS = 1024
FLOOD = 1100
"""Connections at once: more than a process has descriptors."""
JOB = """\
[job]
steps = {steps}
dtype = "float64"
verify = true
threads = 1
timeout_s = 60
keep_final = true
run_dir = "{run_dir}"
{tiny}[parallel]
devices_per_node = {devices_per_node}
{parallel}
[recovery]
restart_nodes = true
max_restarts = 20
plan = "{plan}"
[emulate]
unit_ms = 2
[snapshot]
every = 1
max_cost = 0
persist_every_s = 0
"""
"""Devices are emulated, so that a step takes a while on cores that are shared by many."""


class OutsideJob:
    def __init__(self, drawn: OutsideRun, folder: Path, *, is_root: bool) -> None:
        self._net = f"hfo-{os.getpid()}-{drawn.seed}" if is_root else ""
        self._mark = f"{os.getpid()}-{drawn.seed}"
        folder.mkdir()
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.run_dir, self.output = self.disk / "run", folder / "output.txt"
        self._job, self._ballast = folder / "job.toml", self.disk / "ballast"
        shape = "\n".join(f"{k} = {v!r}" for k, v in SHAPES[drawn.shape].items()).replace("'", '"')
        self._job.write_text(
            JOB.format(
                tiny=TINY,
                steps=STEPS,
                run_dir=self.run_dir,
                devices_per_node=drawn.devices_per_node,
                parallel=shape,
                plan="auto" if drawn.has_planner else "reroute",
            )
        )
        self._helpers: list[subprocess.Popen[bytes]] = []
        if is_root:
            run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(self.disk))
            run("ip", "netns", "add", self._net)
            run("ip", "-n", self._net, "link", "set", "lo", "up")

    def start(self) -> None:
        inside = ["ip", "netns", "exec", self._net] if self._net else []
        limit = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*inside, *limit, *command(self._job)],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, MARK: self._mark, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def code(self) -> int | None:
        """As a shell has it; None: it runs."""
        found = self.process.poll()
        return found if found is None or found >= 0 else 128 - found

    def num_steps(self) -> int:
        try:
            return (self.run_dir / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    # Processes.

    def roles(self) -> dict[str, list[int]]:
        """Role -> processes that are there now."""
        found: dict[str, list[int]] = {"launcher": [self.process.pid]}
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(OSError, psutil.Error):
                    if child.status() != psutil.STATUS_ZOMBIE:
                        found.setdefault(_role(child), []).append(child.pid)
        return found

    def pids(self) -> list[int]:
        """All processes of the job, also those whose parent is gone."""
        wanted, found = f"{MARK}={self._mark}".encode(), list[int]()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (path / "environ").read_bytes().split(b"\0"):
                    status = (path / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [int(path.name)] * (status != "Z")
        return found

    def kill_all(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)

    # What is done to it: each says whether it could be done.

    def begin(self, blow: Blow) -> list[int] | None:
        """None: there was nothing to do it to. Else what `end` needs."""
        match blow.kind:
            case "kill" | "stop" | "term":
                return self._signal(blow)
            case "cut" | "reset":
                return self._close_port(blow)
            case "flood":
                return self._flood(blow)
            case _:
                return self._fill()

    def end(self, blow: Blow, struck: list[int]) -> None:
        match blow.kind:
            case "stop":
                for pid in struck:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
            case "cut" | "reset":
                run("ip", "netns", "exec", self._net, "iptables", "-F")
            case "fill":
                self._ballast.unlink(missing_ok=True)
            case _:
                pass

    def _signal(self, blow: Blow) -> list[int] | None:
        several = blow.target == "workers"
        there = self.roles().get("worker" if several else blow.target, [])
        if not there:
            return None
        numbers = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
        chosen = there[: 1 + int(blow.choice * len(there))] if several else [_pick(there, blow)]
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, numbers[blow.kind])
        return chosen

    def _close_port(self, blow: Blow) -> list[int] | None:
        pids = self.roles().get(blow.target, []) if blow.target else self.pids()
        ports = self._ports(pids, listening=blow.target in ("coordinator", "store"))
        if not ports:
            return None
        port = str(_pick(ports, blow))
        what = ["DROP"] if blow.kind == "cut" else ["REJECT", "--reject-with", "tcp-reset"]
        for side in ("--sport", "--dport"):
            run(
                *("ip", "netns", "exec", self._net, "iptables", "-A", "INPUT", "-p", "tcp"),
                *(side, port, "-j", *what),
            )
        return []

    def _flood(self, blow: Blow) -> list[int] | None:
        pids = self.roles().get(blow.target, []) if blow.target else self.pids()
        ports = self._ports(pids, listening=True)
        if not ports:
            return None
        script = (
            "import resource, socket, sys, time\n"
            f"resource.setrlimit(resource.RLIMIT_NOFILE, ({2 * FLOOD}, {2 * FLOOD}))\n"
            "kept = []\n"
            f"for _ in range({FLOOD}):\n"
            "    s = socket.socket(); s.setblocking(False)\n"
            f"    s.connect_ex(('127.0.0.1', {_pick(ports, blow)})); kept.append(s)\n"
            f"time.sleep({blow.lasts_s})\n"
        )
        inside = ["ip", "netns", "exec", self._net] if self._net else []
        self._helpers.append(subprocess.Popen([*inside, sys.executable, "-S", "-c", script]))
        return []

    def _ports(self, pids: list[int], *, listening: bool = False) -> list[int]:
        """Of sockets that these processes have open. (psutil looks at its own network only.)"""
        own = {name for pid in pids for name in _sockets(pid)}
        found: dict[int, None] = {}
        with suppress(OSError):
            table = Path(f"/proc/{self.process.pid}/net/tcp").read_text().splitlines()[1:]
            for fields in map(str.split, table):
                is_listening = fields[3] == "0A"
                if f"socket:[{fields[9]}]" in own and (is_listening or not listening):
                    found[int(fields[1].partition(":")[2], 16)] = None
        return sorted(found)

    def _fill(self) -> list[int]:
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 2**16)
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0")
        return []

    def close(self) -> None:
        self.kill_all()
        for helper in self._helpers:
            helper.kill()
            helper.wait()
        for name in memory_of(self.run_dir):  # of a run that was broken off
            Path("/dev/shm", name).unlink(missing_ok=True)
        if self._net:
            run("umount", "-l", str(self.disk))
            run("ip", "netns", "del", self._net)


def _role(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    log = Path(os.readlink(f"/proc/{process.pid}/fd/1")).stem
    if log in ("coordinator", "store"):
        return log
    if log.startswith("agent-"):
        return "agent"
    if log[:1] == "n" and ".g" in log:
        return "worker"
    return "fork server" if "fork_server" in line else "other"


def _sockets(pid: int) -> list[str]:
    found: list[str] = []
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(path))
    return found


def _pick(there: list[int], blow: Blow) -> int:
    return there[min(len(there) - 1, int(blow.choice * len(there)))]


def is_possible() -> str:
    """Why there are no cuts and full disks here; empty: there are."""
    if os.geteuid() != 0:
        return "cuts, resets and full disks need root: signals and floods alone"
    name = f"hfo-{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
        try:
            run("ip", "netns", "exec", name, "iptables", "-A", "INPUT", "-p", "tcp", "-j", "DROP")
        finally:
            run("ip", "netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no cuts, resets and full disks here: {error}"
    return ""
