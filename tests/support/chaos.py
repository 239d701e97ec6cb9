"""Short jobs with real faults, drawn from a seed, and what must be true of each of them."""

import os
import time
from collections import Counter
from pathlib import Path

import msgspec
import psutil

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.observe.events import Event, FaultInjected, JobEnded, JobStarted
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import RecoverySection, SnapshotSection
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import JobFailed, RunResult, run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.chaos_draw import Drawn
from support.outside import SignalSender
from support.time_check import check_seen


def make_config(
    shape: dict[str, object],
    num_steps: int,
    run_dir: str,
    *,
    dropout: float = 0.0,
    **more: object,
) -> JobConfig:
    return JobConfig(
        job=JobSection(
            steps=num_steps, dtype="float64", verify=True, threads=1, run_dir=run_dir, timeout_s=60
        ),
        model=ModelSection(preset="llama-tiny", dropout=dropout),
        data=DataSection(rows=1, seq_len=16, micro_batches=6),
        parallel=ParallelSection(**({"devices_per_node": 1} | shape)),
        optimizer=OptimizerConfig(learning_rate=3e-3),
        recovery=RecoverySection(restart_nodes=True, max_restarts=20),
        **({"snapshot": SnapshotSection(every=0)} | more),
    )


def without_planner(config: JobConfig) -> JobConfig:
    """For a job that is not about its decisions: its process costs more than such a job."""
    recovery = msgspec.structs.replace(config.recovery, plan="reroute")
    return msgspec.structs.replace(config, recovery=recovery)


USUAL_STEPS = 80
"""As many as most tests need."""


class Undisturbed:
    """Steps of runs without any fault: one worker does them, as every layout comes to the same, and
    once, as no step depends on how many follow it.
    """

    def __init__(self, fork_server: ForkServer, folder: Path) -> None:
        self._fork_server, self._folder = fork_server, folder
        self._runs: dict[float, RunResult] = {}
        """By dropout, the longest so far."""

    def __call__(self, num_steps: int, dropout: float = 0.0) -> RunResult:
        longest = self._runs.get(dropout)
        if longest is None or len(longest.steps) < num_steps:
            most = max(num_steps, USUAL_STEPS)
            folder = str(self._folder / f"{most}-{dropout}")
            config = make_config({}, most, folder, dropout=dropout)
            job = prepare_job(without_planner(config))
            longest = self._runs[dropout] = run_job(job, fork_server=self._fork_server)
        return msgspec.structs.replace(longest, steps=longest.steps[:num_steps])


class Chaos:
    """Runs drawn jobs on one warm fork server and keeps count."""

    def __init__(self, fork_server: ForkServer, folder: Path, undisturbed: Undisturbed) -> None:
        self._fork_server, self._folder, self._undisturbed = fork_server, folder, undisturbed
        self.counts: Counter[str] = Counter()
        self.num_runs = 0
        self.worst_time = 0.0
        """How much the parts of the time differed from the wall time, at most, relative to it."""

    @property
    def num_done(self) -> int:
        return sum(self.counts.values())

    def run(self, drawn: Drawn) -> None:
        """One job and what is done to it: it ends, and equals the same training undisturbed."""
        calm = self._undisturbed(drawn.num_steps, drawn.dropout)
        self.num_runs += 1
        sender = SignalSender(self._fork_server, drawn.strikes)
        heard_s = [time.time()]
        """When it was called, began and ended."""

        def hear(event: Event) -> None:
            if isinstance(event, JobStarted | JobEnded):
                heard_s.append(time.time())
            if isinstance(event, FaultInjected):
                self.counts[event.fault] += 1
            sender(event)

        run_dir = self._folder / f"run-{self.num_runs}"
        job = prepare_job(job_config(drawn, str(run_dir)))
        try:
            result = run_job(job, on_event=hear, fork_server=self._fork_server)
        except JobFailed as error:
            raise AssertionError(f"{drawn}: {error}") from None
        finally:
            sender.join()
            self.counts += sender.counts
        check_equal(calm, result, str(drawn))
        self.worst_time = max(self.worst_time, check_seen(run_dir, *heard_s))


def job_config(drawn: Drawn, folder: str) -> JobConfig:
    return make_config(
        drawn.parallel,
        drawn.num_steps,
        folder,
        dropout=drawn.dropout,
        faults=drawn.faults,
        snapshot=drawn.snapshot,
    )


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
