"""`holdfast run` as a process of its own, seen and struck from outside."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from holdfast.observe.events import Event, JobStarted, Restored, StepDone
from holdfast.observe.journal import read_journal, read_lines, read_metrics

POLL_S = 0.005
DEADLINE_S = 90.0
TINY = """\
[model]
preset = "llama-tiny"
num_layers = 2
dim = 32
hidden = 64
num_heads = 4
num_kv_heads = 2
[data]
rows = 1
seq_len = 16
micro_batches = 4
[optimizer]
learning_rate = 3e-3
"""
"""A model that takes milliseconds a step."""
JOB = """\
[job]
steps = {steps}
dtype = "float64"
verify = true
threads = 1
timeout_s = 60
run_dir = "{run_dir}"
{job}
{tiny}[parallel]
replicas = {replicas}
stages = {stages}
devices_per_node = 1

[recovery]
restart_nodes = true
max_restarts = 20

[snapshot]
every = 1
max_cost = 0
{snapshot}
"""


def write_job(
    folder: Path,
    steps: int,
    *,
    replicas: int = 2,
    stages: int = 1,
    job: str = "",
    snapshot: str = "persist_every_steps = 10",
) -> Path:
    """A job file; its run directory is `run` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.toml"
    path.write_text(
        JOB.format(
            tiny=TINY,
            steps=steps,
            run_dir=folder / "run",
            replicas=replicas,
            stages=stages,
            job=job,
            snapshot=snapshot,
        )
    )
    return path


class CommandRun:
    """One `holdfast run`. What it prints goes to a file."""

    def __init__(self, job_file: Path, *flags: str) -> None:
        self.run_dir = job_file.parent / "run"
        self.output = job_file.parent / "output.txt"
        self._steps_before, self._runs_before = self.steps, self._num_runs()
        self.began = time.monotonic()
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command(job_file, *flags),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                preexec_fn=_heed_signals,  # noqa: PLW1509
            )

    @property
    def steps(self) -> int:
        """Lines of steps, also of runs before."""
        path = self.run_dir / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def _num_runs(self) -> int:
        path = self.run_dir / "journal.jsonl"
        if not path.is_file():
            return 0
        return sum(isinstance(event, JobStarted) for event in read_journal(path))

    @property
    def has_begun(self) -> bool:
        """Has it written anything?"""
        return self._num_runs() > self._runs_before

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def wait_until(self, reached: Callable[[], bool], poll_s: float = POLL_S) -> bool:
        """False: it ended before."""
        end = time.monotonic() + DEADLINE_S
        while not reached():
            if self.is_over:
                return False
            assert time.monotonic() < end, self.output.read_text()[-3000:]
            if poll_s:
                time.sleep(poll_s)
        return True

    def wait_steps(self, number: int) -> bool:
        """Of this run; False: it ended before."""
        return self.wait_until(lambda: self.steps - self._steps_before >= number)

    def has_logged(self, kind: type[Event], number: int = 1) -> bool:
        path = self.run_dir / "journal.jsonl"
        if not path.is_file():
            return False
        return sum(isinstance(event, kind) for event in read_journal(path)) >= number

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def processes(self) -> list[psutil.Process]:
        """All of the job, the launcher first."""
        try:
            launcher = psutil.Process(self.process.pid)
            return [launcher, *launcher.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill_all(self) -> None:
        """kill -9 of everything, as if at once."""
        found = self.processes()
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in [*self.processes(), *found]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(DEADLINE_S)
        psutil.wait_procs(found, timeout=DEADLINE_S)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit code as a shell has it."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            text = self.output.read_text()[-3000:]
            self.kill_all()
            raise AssertionError(f"it did not end within {deadline_s:g} s: {text}") from None
        return code if code >= 0 else 128 - code


def processes_by_log(run: CommandRun) -> dict[str, psutil.Process]:
    """The job's processes by the names of the logs they write."""
    found = {}
    for process in run.processes():
        with suppress(OSError, psutil.Error):
            log = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
            if log.suffix == ".log":
                found[log.stem] = process
    return found


def _heed_signals() -> None:
    """Tests under nohup or in the background of a shell hand ignored signals on, and a command
    would rightly keep ignoring them, at the latest until it has handlers of its own.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def command(job_file: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli.main", "run", str(job_file), *flags]


def end_of(run: CommandRun) -> list[str]:
    """The last lines it printed."""
    return run.output.read_text().splitlines()[-8:]


def kept_steps(run_dir: Path) -> dict[int, StepDone]:
    """The last word on every step."""
    return {step.step: step for step in read_metrics(run_dir / "metrics.jsonl")}


def restores(run_dir: Path) -> list[Restored]:
    return [e for e in read_journal(run_dir / "journal.jsonl") if isinstance(e, Restored)]


def same_training(ours: Path, theirs: Path) -> None:
    """Of float64 runs whose plan is the same, or is regrouped."""
    mine, calm = kept_steps(ours), kept_steps(theirs)
    assert sorted(mine) == sorted(calm)
    for number, step in calm.items():
        assert mine[number].tokens == step.tokens
        assert abs(mine[number].loss - step.loss) <= 1e-9 * abs(step.loss), number
        assert abs(mine[number].norm - step.norm) <= 1e-8 * abs(step.norm), number


def memory_of(run_dir: Path) -> list[str]:
    """Names in shared memory that are the run's."""
    path = run_dir / "shared_memory"
    if not path.is_file():
        return []
    return [found for found in os.listdir("/dev/shm") if f"-{path.read_text()}." in found]


def processes_of(run_dir: Path) -> list[str]:
    """Processes that write a log of this run."""
    found: list[str] = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            log = os.readlink(f"/proc/{process.pid}/fd/1")
            alive = process.status() != psutil.STATUS_ZOMBIE
            if log.startswith(f"{run_dir}/") and alive:
                found.append(f"{process.pid} {Path(log).stem}")
    return found


def journal_lines(run_dir: Path) -> list[dict[str, object]]:
    return list(read_lines(run_dir / "journal.jsonl"))


def steps_again(text: str) -> list[int]:
    """As printed, of every time that it went on."""
    return [int(found) for found in re.findall(r"; (\d+) steps? done again", text)]


KILL = signal.SIGKILL
