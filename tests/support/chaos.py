"""Short jobs with real faults, drawn from a seed, and what must be true of each of them."""

import os
import random
from collections import Counter
from pathlib import Path

import psutil

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.observe.events import Event, FaultInjected
from holdfast.runtime.config.job_file import (
    DataSection,
    JobConfig,
    JobSection,
    ModelSection,
    ParallelSection,
    RecoverySection,
)
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import RunResult, run_job
from holdfast.runtime.launch.prepare import prepare_job

SHAPES = (
    {"replicas": 3, "stages": 1},
    {"replicas": 3, "stages": 2},
    {"replicas": 2, "stages": 2, "schedule": "zero-bubble"},
    {"replicas": 3, "tensor": 2},
)
PHASES = ("forward", "backward", "reduce 1", "reduced", "agree", "agreed", "apply", "applied")
KINDS = (
    "SIGKILL",
    "SIGKILL",
    "SIGTERM",
    "SEGFAULT",
    "OS_ABORT",
    "WORKLOAD_EXC",
    "NODE_LOSS",
    "COORDINATOR_LOSS",
    "PARTITION",
    "SIGSTOP",
    "LOCK_GIL",
    "SLOW",
)
LASTING = {"PARTITION": 0.5, "SIGSTOP": 0.0, "LOCK_GIL": 0.0, "SLOW": 0.5}
"""How long, in seconds; 0 = until it is found."""
SPACING = 14
"""Steps between two faults, so that mostly, not always, the one before is mended."""


def make_config(
    shape: dict[str, object], num_steps: int, run_dir: str, **more: object
) -> JobConfig:
    return JobConfig(
        job=JobSection(
            steps=num_steps, dtype="float64", verify=True, threads=1, run_dir=run_dir, timeout_s=60
        ),
        model=ModelSection(preset="llama-tiny"),
        data=DataSection(rows=1, seq_len=16, micro_batches=6),
        parallel=ParallelSection(devices_per_node=1, **shape),
        optimizer=OptimizerConfig(learning_rate=3e-3),
        recovery=RecoverySection(restart_nodes=True, max_restarts=20),
        **more,
    )


def draw_faults(seed: int, shape: dict[str, object], num_faults: int) -> tuple[Fault, ...]:
    """Never the last replica: one node, always the same, is spared."""
    source = random.Random(seed)
    count = 1
    for degree in ("replicas", "stages", "tensor"):
        count *= int(shape.get(degree, 1))
    spared = count // int(shape["replicas"])
    faults = []
    for number in range(num_faults):
        kind = source.choice(KINDS)
        victim = source.randrange(spared, count)
        inside = kind in ("SIGKILL", "SEGFAULT", "OS_ABORT", "WORKLOAD_EXC")
        target = f"n{victim}" if kind in ("NODE_LOSS", "PARTITION") else f"n{victim}.g0"
        faults.append(
            Fault(
                kind=kind,
                target="random" if kind == "COORDINATOR_LOSS" else target,
                at_step=3 + SPACING * number + source.randrange(SPACING - 4),
                phase=source.choice(PHASES) if inside and source.random() < 0.8 else "",
                duration_s=LASTING.get(kind, 0.0),
            )
        )
    return tuple(faults)


class Chaos:
    """Runs jobs on one warm fork server and keeps count."""

    def __init__(self, fork_server: ForkServer, folder: Path) -> None:
        self._fork_server, self._folder = fork_server, folder
        self._calm: dict[str, RunResult] = {}
        self.counts: Counter[str] = Counter()

    def run(self, seed: int, num_faults: int) -> None:
        """One job with faults: it ends, and equals the same job without."""
        shape = SHAPES[seed % len(SHAPES)]
        num_steps = 3 + SPACING * num_faults
        calm = self._undisturbed(shape, num_steps)
        faults = draw_faults(seed, shape, num_faults)
        events: list[Event] = []
        job = prepare_job(
            make_config(shape, num_steps, str(self._folder / f"run-{seed}"), faults=faults)
        )
        result = run_job(job, on_event=events.append, fork_server=self._fork_server)
        self.counts.update(e.fault for e in events if isinstance(e, FaultInjected))
        check_equal(calm, result, f"seed {seed}: {[f.kind for f in faults]}")

    def _undisturbed(self, shape: dict[str, object], num_steps: int) -> RunResult:
        key = f"{sorted(shape.items())} {num_steps}"
        if key not in self._calm:
            folder = str(self._folder / f"calm-{len(self._calm)}")
            job = prepare_job(make_config(shape, num_steps, folder))
            self._calm[key] = run_job(job, fork_server=self._fork_server)
        return self._calm[key]


def check_equal(calm: RunResult, result: RunResult, story: str) -> None:
    assert result.report.outcome == "finished", f"{story}: {result.report.reason}"
    ours = {step.step: step for step in result.steps}
    theirs = {step.step: step for step in calm.steps}
    assert sorted(ours) == sorted(theirs), f"{story}: steps are missing"
    assert len(result.steps) == len(ours), f"{story}: a step counts twice"
    for number, step in theirs.items():
        mine = ours[number]
        assert mine.tokens == step.tokens, f"{story}: samples of step {number} are lost"
        assert abs(mine.loss - step.loss) <= 1e-9 * abs(step.loss), f"{story}: step {number}"
        assert abs(mine.norm - step.norm) <= 1e-8 * abs(step.norm), f"{story}: step {number}"


def shared_memory(folder: Path) -> list[str]:
    """Names in shared memory that belong to the jobs that ran below `folder`."""
    jobs = [path.read_text() for path in folder.rglob("shared_memory")]
    return [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if any(j in name for j in jobs)]


def left_behind(fork_server: ForkServer, folder: Path) -> list[str]:
    """Processes below the fork server that should be gone, and shared memory of the jobs below
    `folder`.
    """
    found = [
        f"process {child.pid} {child.name()}"
        for child in psutil.Process(fork_server.pid).children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]
    return found + shared_memory(folder)
