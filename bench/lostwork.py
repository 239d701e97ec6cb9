"""How much work is lost when every worker of a job is killed at once, again and again?

Both train the same Llama on the same data in two replicas of one single-threaded worker each, and
at the same steps all workers get kill -9, at a random moment of the step.

    ours    a job as `holdfast run` runs it, with `[snapshot] every = 1`. Agents and coordinator
            live on; the workers are forked from the warm fork server and load from shared memory
    plain   a PyTorch script: DDP, torch.distributed.checkpoint.async_save every 50 steps to a local
            folder. A supervisor starts both processes again at once; they import torch, make their
            group, and load the newest complete checkpoint

Steps redone are those that were finished before a kill and run again after it. Wall time lost is
what the run takes from its first step to its last beyond as many times its own median step. For the
plain script it stands apart how much of that passes until it is ready to train again (imports,
groups, loading): one that also kept a warm process would not lose that part.

Goals: at least 90 % fewer steps redone than plain (BAFT claims 98 % less lost work), and less wall
time lost.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from torch._C._distributed_c10d import TCPStore

from _common import Goal, finish, parse_args, print_table
from _jobs import SIZES, make_job
from holdfast.observe.events import Event, Restored, StepDone
from holdfast.runtime.config.recovery_sections import RecoverySection, SnapshotSection
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import run_job

SIZE, MICRO_BATCHES, REPLICAS = "1M", 2, 2
EVERY_STEPS = 50
"""Between two checkpoints of the plain script."""
SPACING_STEPS = 100
"""Between two kills, on average: as many checkpoints as not."""
KILLS, QUICK_KILLS = 10, 2
MIN_FEWER = 0.9
PLAIN = Path(__file__).with_name("_plain_replica.py")
PATIENCE_S = 300.0
"""For a start of the plain script, on a busy machine, too."""


def kill_steps(number: int, seed: int = 0) -> list[int]:
    """After these, anywhere between two checkpoints."""
    chance = random.Random(seed)
    return [SPACING_STEPS * (n + 1) + chance.randrange(EVERY_STEPS) for n in range(number)]


@dataclass
class Run:
    """One system's steps in the order they were done, with their times."""

    steps: list[tuple[float, int]] = field(default_factory=list)
    num_kills: int = 0
    starting_s: float = 0.0
    """From kills to being ready to train, all together."""
    told_redone: int = 0
    """What the system itself says."""


@dataclass(frozen=True)
class Loss:
    redone: int
    wall_s: float
    step_s: float
    """The median."""
    lost_s: float


def loss_of(run: Run) -> Loss:
    reached, redone = -1, 0
    times: list[float] = []
    for (before_s, before), (at_s, step) in pairwise(run.steps):
        reached = max(reached, before)
        if step <= reached:
            redone += 1
        elif step == before + 1:
            times.append(at_s - before_s)
    wall_s = run.steps[-1][0] - run.steps[0][0]
    step_s = statistics.median(times)
    distinct = len({step for _, step in run.steps})
    return Loss(redone, wall_s, step_s, wall_s - (distinct - 1) * step_s)


class Killer:
    """Told of every step; kills at the steps it is given, each once."""

    def __init__(self, run: Run, at_steps: Sequence[int], kill: Callable[[], object]) -> None:
        self._run, self._left, self._kill = run, list(at_steps), kill
        self._chance = random.Random(1)
        self.killed_s = 0.0

    def stepped(self, at_s: float, step: int) -> None:
        self._run.steps.append((at_s, step))
        if self._left and step == self._left[0]:
            del self._left[0]
            (before_s, _), (now_s, _) = self._run.steps[-2:]
            threading.Timer(self._chance.uniform(0, now_s - before_s), self._strike).start()

    def _strike(self) -> None:
        self._run.num_kills += 1
        self.killed_s = time.monotonic()
        self._kill()


# Ours.


def run_ours(at_steps: Sequence[int], num_steps: int) -> Run:
    run = Run()
    with ForkServer() as fork_server, tempfile.TemporaryDirectory() as folder:
        fork_server.wait_until_warm()
        killer = Killer(run, at_steps, lambda: kill_children(fork_server.pid))

        def hear(event: Event) -> None:
            if isinstance(event, StepDone):
                killer.stepped(time.monotonic(), event.step)
            elif isinstance(event, Restored):
                run.told_redone += event.steps_redone
                run.starting_s += time.monotonic() - killer.killed_s

        job = make_job(
            SIZES[SIZE].with_micro_batches(MICRO_BATCHES),
            REPLICAS,
            Path(folder) / "run",
            steps=num_steps,
            recovery=RecoverySection(max_restarts=10 * len(at_steps)),
            snapshot=SnapshotSection(every=1, max_cost=0, persist_every_s=0),
        )
        run_job(job, on_event=hear, fork_server=fork_server)
    return run


def kill_children(pid: int) -> None:
    for child in psutil.Process(pid).children():
        child.kill()


# The plain script.


class Supervisor:
    """Starts all processes of the script, and again when they have ended, until all is done."""

    def __init__(self, at_steps: Sequence[int], num_steps: int, root: Path) -> None:
        self.run = Run()
        self._killer = Killer(self.run, at_steps, self._kill)
        self._num_steps, self._root = num_steps, root
        self._processes: list[subprocess.Popen[str]] = []

    def train(self) -> None:
        while not self.run.steps or self.run.steps[-1][1] < self._num_steps - 1:
            killed = self.run.num_kills
            self._start()
            watchdog = threading.Timer(PATIENCE_S, self._kill)
            watchdog.start()
            self._read()
            watchdog.cancel()
            for process in self._processes:
                process.wait()
            done = self.run.steps and self.run.steps[-1][1] == self._num_steps - 1
            if self.run.num_kills == killed and not done:
                raise SystemExit("the plain script ended by itself, or was not done in time")

    def _start(self) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        options = {
            "size": SIZE,
            "micro-batches": MICRO_BATCHES,
            "port": self._store.port,
            "steps": self._num_steps,
            "every": EVERY_STEPS,
            "root": self._root,
        }
        given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(PLAIN), *given, "--rank", str(rank)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                text=True,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(REPLICAS)
        ]

    def _read(self) -> None:
        """What the first says, until it ends."""
        lines = self._processes[0].stdout
        assert lines is not None
        with lines:
            for line in lines:
                told = json.loads(line)
                if told["event"] == "step":
                    self._killer.stepped(told["at_s"], told["step"])
                elif self._killer.killed_s:
                    self.run.starting_s += told["at_s"] - self._killer.killed_s

    def _kill(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)


def run_plain(at_steps: Sequence[int], num_steps: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(at_steps, num_steps, Path(folder))
        supervisor.train()
    return supervisor.run


# Both.


def row(name: str, run: Run, loss: Loss) -> dict[str, object]:
    return {
        "system": name,
        "kills": run.num_kills,
        "steps redone": loss.redone,
        "step ms": 1e3 * loss.step_s,
        "wall s": loss.wall_s,
        "lost s": loss.lost_s,
        "of it starting s": run.starting_s,
    }


def judge(ours: Loss, plain: Loss) -> list[Goal]:
    fewer = 1 - ours.redone / plain.redone if plain.redone else float("nan")
    lost = ours.lost_s / plain.lost_s
    return [
        Goal("steps redone, fewer than plain by", fewer, MIN_FEWER, at_most=False),
        Goal("wall time lost, ours / plain", lost, 1.0),
    ]


def main() -> None:
    args = parse_args(__doc__)
    number = QUICK_KILLS if args.quick else KILLS
    at_steps = kill_steps(number)
    num_steps = SPACING_STEPS * (number + 1)
    runs = {"ours": run_ours(at_steps, num_steps), "plain": run_plain(at_steps, num_steps)}
    losses = {name: loss_of(run) for name, run in runs.items()}
    title = f"{num_steps} steps of {SIZE} parameters, all workers killed after {at_steps}"
    print_table(title, [row(name, run, losses[name]) for name, run in runs.items()])
    measured = {name: asdict(loss) | asdict(runs[name]) for name, loss in losses.items()}
    finish(judge(losses["ours"], losses["plain"]), args.json, measured)


if __name__ == "__main__":
    main()
