"""torchft beside us: its own environment, a lighthouse, replicas as processes, and real kills.

The environment lies in `.venv-peers`, sees the torch of this one and is made when it is first
needed. Everything runs by torchft's default settings.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from _common import free_port
from _jobs import Outcome, Size, extra_stall, gaps

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-peers"
REPLICA = Path(__file__).with_name("_torchft_replica.py")
INSTALL_DEADLINE_S = 600
START_DEADLINE_S = 120.0
POLL_S = 0.005


class NoPeer(Exception):
    """torchft cannot be installed or does not run here."""


def environment() -> Path:
    """The folder of its programs."""
    programs = ENVIRONMENT / "bin"
    if not (programs / "torchft_lighthouse").exists():
        print("installing torchft-nightly into .venv-peers ...", flush=True)
        try:
            _install(programs)
        except (subprocess.SubprocessError, OSError) as error:
            raise NoPeer(f"torchft cannot be installed: {error}") from None
    return programs


def _install(programs: Path) -> None:
    _call([sys.executable, "-m", "venv", str(ENVIRONMENT)])
    (ENVIRONMENT / ".gitignore").write_text("*\n")
    python = str(programs / "python")
    site = _call([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # The same torch, and pip finds it installed.
    (Path(site) / "same_torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _call([python, "-m", "pip", "-qq", "install", "torchft-nightly"])


def _call(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, check=True, text=True, capture_output=True, timeout=INSTALL_DEADLINE_S
    )
    return done.stdout


# Processes.


@dataclass(frozen=True)
class Attempt:
    """One replica's try at a step."""

    at_s: float
    step: int
    committed: bool
    quorum: int
    participants: int
    cpu_s: float


class Replica:
    """A process, and what it says."""

    def __init__(self, command: Sequence[str]) -> None:
        self.started_s = time.monotonic()
        self.imported_s: float | None = None
        self.healed_bytes = 0
        self.attempts: list[Attempt] = []
        self.told: dict[str, Any] = {}
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        readers = (self._read, self._read_errors)
        self._threads = [threading.Thread(target=reader, daemon=True) for reader in readers]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self._take(json.loads(line))

    def _take(self, fields: dict[str, Any]) -> None:
        match fields.pop("event"):
            case "step":
                self.attempts.append(Attempt(**fields))
            case "imported":
                self.imported_s = fields["at_s"]
            case "healed":
                self.healed_bytes = fields["num_bytes"]
            case _:
                self.told = fields

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._errors = [*self._errors[-20:], line]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        return "".join(self._errors[-1:]).strip() or f"exit status {self._process.poll()}"

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(timeout=10)


class Cluster:
    """A lighthouse and replicas, by rank; nothing of it outlives the `with` block."""

    def __init__(
        self,
        name: str,
        size: Size,
        replicas: int,
        *,
        program: Path = REPLICA,
        min_replicas: int = 2,
    ) -> None:
        """`program`: what the processes run, one or more of each replica."""
        self._name, self._size, self.num_replicas = name, size, replicas
        self._program, self._min_replicas = program, min_replicas
        self.replicas: dict[int, Replica] = {}
        self._all: list[Replica] = []
        self._programs = environment()

    def __enter__(self) -> "Cluster":
        self._port = free_port()
        program = str(self._programs / "torchft_lighthouse")
        self._lighthouse = subprocess.Popen(
            [program, "--min_replicas", str(self._min_replicas), "--bind", f"[::]:{self._port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *args: object) -> None:
        for replica in self._all:
            replica.end()
        self._lighthouse.kill()
        self._lighthouse.wait()

    def start(self, rank: int, mode: str = "train", **options: float) -> Replica:
        settings = {
            "size": self._name,
            "micro-batches": self._size.micro_batches,
            "rank": rank,
            "replicas": self.num_replicas,
            "lighthouse": f"http://127.0.0.1:{self._port}",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        python = str(self._programs / "python")
        replica = self.replicas[rank] = Replica([python, str(self._program), mode, *flags])
        self._all.append(replica)
        return replica

    def commits(self, rank: int) -> list[Attempt]:
        return [attempt for attempt in self.replicas[rank].attempts if attempt.committed]

    def full_commits(self, rank: int, after_s: float = 0.0) -> list[Attempt]:
        return [
            attempt
            for attempt in self.commits(rank)
            if attempt.participants == self.num_replicas and attempt.at_s > after_s
        ]

    def wait_for(self, is_done: Callable[[], bool], patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while not is_done():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def wait_until_calm(self, calm: int, after_s: float = 0.0) -> None:
        """All replicas have done so many steps together."""

        def is_calm() -> bool:
            return all(len(self.full_commits(rank, after_s)) >= calm for rank in self.replicas)

        def is_over() -> bool:
            return is_calm() or not all(r.is_running for r in self.replicas.values())

        self.wait_for(is_over, START_DEADLINE_S)
        if not is_calm():
            words = {replica.last_words for replica in self.replicas.values()}
            raise NoPeer(f"torchft's replicas do not get together: {'; '.join(sorted(words))}")

    @property
    def cpu_s(self) -> float:
        """Of all processes, per step, lately."""
        own = [replica.attempts[-4:] for replica in self.replicas.values()]
        return sum((found[-1].cpu_s - found[0].cpu_s) / (len(found) - 1) for found in own)


# Faults.


@contextmanager
def trained(name: str, size: Size, replicas: int, calm: int) -> Iterator[Cluster]:
    """A cluster in which every worker trains."""
    with Cluster(name, size, replicas) as cluster:
        for rank in range(replicas):
            cluster.start(rank)
        cluster.wait_until_calm(calm)
        yield cluster


@dataclass
class Found:
    """What was seen of torchft in one cluster."""

    outcomes: list[Outcome] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    hangs: list[Outcome] = field(default_factory=list)
    cpu_s: float = 0.0
    """Of all replicas, per step."""
    healed_bytes: int = 0


@dataclass(frozen=True)
class Faults:
    """What to do to a cluster, in this order."""

    kills: int
    slow_s: float
    """By how much a transfer is slowed, after one more kill."""
    hangs: int
    calm: int
    cap_s: float


def strike_cluster(name: str, size: Size, replicas: int, faults: Faults, seed: int) -> Found:
    """Kill one replica after another and start it anew; let one heal slowly; stop one. What is
    not back in time ends it, with what was seen so far.
    """
    chance, found, calm = random.Random(seed), Found(), faults.calm
    with trained(name, size, replicas, calm) as cluster:
        found.cpu_s = cluster.cpu_s
        for number in range(faults.kills):
            time.sleep(chance.uniform(0, _step_s(cluster, 0, calm)))
            found.outcomes.append(_kill(cluster, number % replicas, calm, faults.cap_s))
            if found.outcomes[-1].start_s is None:
                return found
        stall_s = _slow_heal(cluster, found, faults)
        if stall_s is None:
            return found
        found.stalls_s.append(stall_s)
        if faults.hangs:
            strike = _strike(cluster, 0, signal.SIGSTOP, calm)
            found.hangs.append(strike.outcome(strike.wait(faults.cap_s)))
    return found


def _kill(cluster: Cluster, victim: int, calm: int, cap_s: float) -> Outcome:
    strike = _strike(cluster, victim, signal.SIGKILL, calm)
    new = cluster.start(victim)
    committed_s = strike.wait(cap_s)
    at_s = strike.at_s
    is_full = cluster.wait_for(lambda: bool(cluster.full_commits(victim, at_s)), cap_s)
    full_s = cluster.full_commits(victim, at_s)[0].at_s if is_full else None
    if is_full:
        cluster.wait_until_calm(calm, at_s)
    return Outcome(
        step_s=strike.step_s,
        commit_s=committed_s,
        discarded=strike.discarded,
        start_s=full_s - new.started_s if full_s is not None else None,
        stall_s=None,
        imported_s=full_s - (new.imported_s or 0.0) if full_s is not None else None,
    )


def _slow_heal(cluster: Cluster, found: Found, faults: Faults) -> float | None:
    """The survivors' extra stall while a replacement heals over a slow network. It comes when they
    are over the loss of the one before.
    """
    strike = _strike(cluster, 0, signal.SIGKILL, faults.calm)
    committed_s = strike.wait(faults.cap_s)
    found.outcomes.append(strike.outcome(committed_s))
    if committed_s is None:
        return None
    ready_s = time.monotonic()
    cluster.start(0, slow_s=faults.slow_s)
    if not cluster.wait_for(lambda: bool(cluster.full_commits(0, ready_s)), faults.cap_s):
        return None
    full_s = cluster.full_commits(0, ready_s)[0].at_s
    found.healed_bytes = cluster.replicas[0].healed_bytes
    cluster.wait_until_calm(2 * faults.calm, full_s)
    times = [attempt.at_s for attempt in cluster.commits(strike.survivors[0])]
    after = [t for t in times if t > full_s]
    return extra_stall([t for t in times if ready_s <= t <= full_s] + after[:1], after)


class _Strike:
    """A signal to one replica, as the others feel it."""

    def __init__(self, cluster: Cluster, victim: int, calm: int) -> None:
        self._cluster = cluster
        self.survivors = [rank for rank in cluster.replicas if rank != victim]
        self._quorum = cluster.commits(self.survivors[0])[-1].quorum
        self.step_s = _step_s(cluster, self.survivors[0], calm)
        self.at_s = time.monotonic()

    def wait(self, cap_s: float) -> float | None:
        """To the survivors' next commit in another quorum, of the last of them."""
        self._cluster.wait_for(lambda: None not in self._firsts(), cap_s)
        firsts = [at_s for at_s in self._firsts() if at_s is not None]
        return max(firsts) - self.at_s if len(firsts) == len(self.survivors) else None

    def _firsts(self) -> list[float | None]:
        return [next(iter(self._fresh(rank)), None) for rank in self.survivors]

    def _fresh(self, rank: int) -> list[float]:
        commits = self._cluster.commits(rank)
        return [a.at_s for a in commits if a.at_s > self.at_s and a.quorum > self._quorum]

    def outcome(self, committed_s: float | None) -> Outcome:
        """Without a replacement."""
        return Outcome(
            step_s=self.step_s,
            commit_s=committed_s,
            discarded=self.discarded,
            start_s=None,
            stall_s=None,
        )

    @property
    def discarded(self) -> int:
        """Attempts in vain, on whom it were most."""
        attempts = [self._cluster.replicas[rank].attempts for rank in self.survivors]
        return max(sum(a.at_s > self.at_s and not a.committed for a in own) for own in attempts)


def _strike(cluster: Cluster, victim: int, number: int, calm: int) -> _Strike:
    strike = _Strike(cluster, victim, calm)
    cluster.replicas[victim].signal(number)
    return strike


def _step_s(cluster: Cluster, rank: int, calm: int) -> float:
    return statistics.median(gaps([a.at_s for a in cluster.commits(rank)[-calm:]]))


# Without faults.


def steady(name: str, size: Size, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds and CPU seconds of every round: torchft, plain DDP, and that again."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with Cluster(name, size, 2) as cluster:
        for rank in range(2):
            cluster.start(rank, "steady", store_port=store.port, rounds=rounds)
        first, second = cluster.replicas.values()
        is_told = cluster.wait_for(
            lambda: bool(first.told and second.told) or not (first.is_running or second.is_running),
            START_DEADLINE_S + 10.0 * rounds,
        )
        if not (is_told and first.told and second.told):
            raise NoPeer(f"torchft does not run: {first.last_words}")
        cpu = {
            key: [a + b for a, b in zip(own, second.told["cpu"][key], strict=True)]
            for key, own in first.told["cpu"].items()
        }
        return {"seconds": first.told["seconds"], "cpu": cpu}
