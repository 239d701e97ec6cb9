"""A real Slurm on this machine: munged, slurmctld, and one slurmd per host, below one folder. For
root. Nothing outside that folder is read or written, and all of it ends with the test.

A host is lost by killing its slurmd, its step daemons and all that they started.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from support.host_jobs import wait_for

MARK = "HOLDFAST_TEST_SLURM"
"""In the environment of the daemons: whose they are, and which host."""

CONF = """
ClusterName=test
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,requeue_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=300
KillWait=30
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
NodeName=h[0-{last}] NodeHostname={name} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=1
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 OverSubscribe=EXCLUSIVE
PartitionName=high Nodes=ALL PriorityTier=10 OverSubscribe=EXCLUSIVE PreemptMode=off
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty: there can."""
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    tools = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
    missing = [name for name in tools if shutil.which(name) is None]
    return f"{', '.join(missing)}: not installed (Debian: slurm-wlm munge)" if missing else ""


def _free_ports(count: int) -> int:
    """The first of so many in a row."""
    for first in range(28_000, 60_000, 50):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_task(process: psutil.Process) -> bool:
    try:
        return "SLURM_JOB_ID" in process.environ() and process.name() != "slurmstepd"
    except psutil.Error:
        return False


class Slurm:
    def __init__(self, folder: Path, num_hosts: int) -> None:
        self.folder, self.hosts = folder, [f"h{number}" for number in range(num_hosts)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        first = _free_ports(num_hosts + 1)
        conf = CONF.format(
            name=socket.gethostname(),
            folder=folder,
            port=first,
            first_port=first + 1,
            last_port=first + num_hosts,
            last=num_hosts - 1,
        )
        (folder / "slurm.conf").write_text(conf)
        (folder / "state").mkdir()
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def begin(self) -> None:
        self._start_munge()
        self._start("slurmctld", "slurmctld", "-D")
        for host in self.hosts:
            self.start_host(host)
        wait_for(lambda: self._states() == {"idle"}, "idle hosts", 60)

    def _start_munge(self) -> None:
        place = self.folder / "munge"
        place.mkdir()
        (place / "key").write_bytes(os.urandom(1024))
        (place / "key").chmod(0o400)
        names = {name: place / name for name in ("socket", "pid-file", "log-file", "seed-file")}
        options = [f"--{name}={path}" for name, path in names.items()]
        for path in [place, place / "key"]:
            shutil.chown(path, "munge", "munge")
        for parent in place.parents:  # the daemon is another user: it has to get there
            if parent.stat().st_uid == 0 and parent.stat().st_mode & 0o5 != 0o5:
                parent.chmod(parent.stat().st_mode | 0o55)
        user = ["runuser", "-u", "munge", "--", "munged", "--foreground", "--force"]
        self._start("munged", *user, f"--key-file={place / 'key'}", *options)
        wait_for((place / "socket").exists, "munged", 30)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**self.env, MARK: f"{self.folder} {name}"},
            )

    def start_host(self, host: str) -> None:
        self._start(host, "slurmd", "-D", "-N", host)

    def _states(self) -> set[str]:
        done = self.call("sinfo", "-h", "-N", "-o", "%t", check=False)
        return set(done.split())

    def call(self, *command: str, check: bool = True, cwd: Path | None = None) -> str:
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=False, cwd=cwd, timeout=60
        )
        assert not check or done.returncode == 0, (command, done.stderr)
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        words = self.call("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_until(self, number: str, *states: str, seconds: float = 300.0) -> dict[str, str]:
        def there() -> dict[str, str]:
            found = self.job(number)
            return found if found["JobState"] in states else {}

        found: dict[str, str] = wait_for(there, f"job {number} {states}", seconds)
        return found

    def lose(self, host: str) -> None:
        """As if its power were gone; Slurm is told, which it would find out by itself later."""
        while found := self._of(host):
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
        self._daemons.pop(host).wait()
        self.call("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=lost")

    def kill_tasks(self) -> None:
        """Of all jobs, on all hosts; the daemons live."""
        while found := [process for process in self._of() if _is_task(process)]:
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)

    def back(self, host: str) -> None:
        self.start_host(host)
        self.call("scontrol", "update", f"NodeName={host}", "State=RESUME")
        wait_for(lambda: self._state(host) in ("idle", "alloc"), f"{host} back", 60)

    def _state(self, host: str) -> str:
        return self.call("sinfo", "-h", "-N", "-n", host, "-p", "low", "-o", "%t").strip()

    def _of(self, host: str = "") -> list[psutil.Process]:
        """All daemons of a host, or of all, and then what they started: a step daemon that
        outlives its tasks would report their end.
        """
        daemons, tasks = {}, {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                env = process.environ()
                is_ours = env.get("SLURM_CONF") == self.env["SLURM_CONF"] and "SLURM_JOB_ID" in env
                if env.get(MARK, "").startswith(f"{self.folder} {host}"):
                    daemons[process.pid] = process
                elif is_ours and host in ("", env.get("SLURMD_NODENAME")):
                    tasks[process.pid] = process
                    parent = process.parent()
                    if parent is not None and parent.name() == "slurmstepd":
                        daemons[parent.pid] = parent
        found = [*daemons.values(), *tasks.values()]
        return [process for process in found if _lives(process)]

    def tasks(self) -> list[str]:
        """What jobs have left running."""
        found = []
        for process in self._of():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if "SLURM_JOB_ID" in process.environ() or process.name() == "slurmstepd":
                    found.append(line)
        return found

    def close(self) -> None:
        deadline = time.monotonic() + 30
        while found := self._of():
            assert time.monotonic() < deadline, found
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        for process in self._daemons.values():
            process.wait()


@contextlib.contextmanager
def slurm(folder: Path, num_hosts: int) -> Iterator[Slurm]:
    made = Slurm(folder, num_hosts)
    try:
        made.begin()
        yield made
    finally:
        made.close()
