"""Our own jobs as a user runs them, for the benchmarks that need real processes and real faults.

A `Strikes` listens to the events of a run, waits for calm steps, sends a signal to a worker at a
random moment of a step, waits until all workers are back, and so on; then it asks for a stop as a
user would. What came of each strike is read afterwards from the events and the times they came at.
"""

import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from _engine import Size as EngineSize
from holdfast.observe.events import (
    Decided,
    Event,
    PlanChanged,
    Recovered,
    StepDone,
    WorkersReady,
)
from holdfast.plan.model_catalog import LlamaShape
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import RecoverySection, SnapshotSection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher import JobFailed, run_job
from holdfast.runtime.launch.prepare import prepare_job

FOREVER_STEPS = 10**6


class Size(EngineSize):
    def with_micro_batches(self, count: int) -> "Size":
        return replace(self, micro_batches=count)


SIZES = {
    "1M": Size(
        LlamaShape(dim=128, num_layers=4, num_heads=8, num_kv_heads=4, hidden=384, vocab=1024),
        rows=2,
        length=64,
        micro_batches=0,
        rounds=0,
    ),
    "25M": Size(
        LlamaShape(dim=512, num_layers=6, num_heads=8, num_kv_heads=4, hidden=1536, vocab=6144),
        rows=1,
        length=64,
        micro_batches=0,
        rounds=0,
    ),
}


def make_job(
    size: Size,
    replicas: int,
    run_dir: Path,
    *,
    steps: int = FOREVER_STEPS,
    recovery: RecoverySection | None = None,
    snapshot: SnapshotSection | None = None,
    faults: Sequence[Fault] = (),
) -> Job:
    shape = size.shape
    return prepare_job(
        JobConfig(
            job=JobSection(steps=steps, run_dir=os.fspath(run_dir)),
            model=ModelSection(
                dim=shape.dim,
                num_layers=shape.num_layers,
                num_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                hidden=shape.hidden,
                vocab=shape.vocab,
            ),
            data=DataSection(seq_len=size.length, rows=size.rows, micro_batches=size.micro_batches),
            parallel=ParallelSection(replicas=replicas),
            recovery=recovery or RecoverySection(),
            snapshot=snapshot or SnapshotSection(every=0),
            faults=tuple(faults),
        )
    )


# A run with faults.


@dataclass(frozen=True)
class Seen:
    """An event and when the launcher heard of it, by the monotonic clock."""

    at_s: float
    event: Event


@dataclass
class Strike:
    """A signal to a worker."""

    target: str
    at_s: float = 0.0
    replaced_s: float = 0.0
    """When the process that took its place was started, by the same clock."""


@dataclass
class Record:
    """A run, for those who look at it afterwards."""

    seen: list[Seen] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    cpu_s: float = 0.0
    """Of all processes, per step, before the first strike."""
    why_ended: str = ""
    """Where it did not end as it should."""

    @property
    def steps(self) -> list[tuple[float, StepDone]]:
        return [(s.at_s, s.event) for s in self.seen if isinstance(s.event, StepDone)]


class Strikes:
    """(OnEvent) Calm steps, a strike, every worker back, and again; then a stop."""

    def __init__(
        self, fork_server: ForkServer, *, number: int, kind: int, calm: int, seed: int = 0
    ) -> None:
        """`calm`: steps with every worker there before each strike and after the last."""
        self.record = Record()
        self._fork_server, self._kind, self._calm = fork_server, kind, calm
        self._left, self._chance = number, random.Random(seed)
        self._pids: dict[str, int] = {}
        self._order: list[str] = []
        self._is_whole, self._num_calm, self._num_healing = False, 0, 0
        self._timer: threading.Timer | None = None
        self._cpu_at: tuple[int, float] = (0, 0.0)

    def __call__(self, event: Event) -> None:
        self.record.seen.append(Seen(time.monotonic(), event))
        match event:
            case WorkersReady(pids=pids):
                self._pids.update(pids)
                self._order, self._is_whole = list(pids), True
            case PlanChanged(joining=joining) if self._struck() in joining:
                self._note_replacement()
                self._is_whole, self._num_calm = True, 0
            case StepDone() if self._is_whole:
                self._calm_step()
            case StepDone():
                self._num_healing += 1

    def _struck(self) -> str:
        return self.record.strikes[-1].target if self.record.strikes else ""

    def _calm_step(self) -> None:
        """Twice as many as it took to heal, too: to compare with it, and with each other."""
        self._num_calm += 1
        if not self.record.strikes and self._num_calm in (2, self._calm):
            self._measure_cpu()
        if self._num_calm != max(self._calm, 2 * self._num_healing + 2):
            return
        if not self._left:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._left, self._num_healing = self._left - 1, 0
        times = [at_s for at_s, _ in self.record.steps[-self._calm :]]
        delay_s = self._chance.uniform(0, statistics.median(gaps(times)))
        self._timer = threading.Timer(delay_s, self._strike)
        self._timer.start()

    def _strike(self) -> None:
        target = self._order[len(self.record.strikes) % len(self._order)]
        strike = Strike(target, time.monotonic())
        self._is_whole = False
        self.record.strikes.append(strike)
        os.kill(self._pids[target], self._kind)

    def _note_replacement(self) -> None:
        """Its process is the one child of the fork server that was not there before."""
        strike = self.record.strikes[-1]
        for child in psutil.Process(self._fork_server.pid).children(recursive=True):
            if child.pid not in self._pids.values():
                self._pids[strike.target] = child.pid
                strike.replaced_s = started_s(child.pid)

    def _measure_cpu(self) -> None:
        count, now = self._num_calm, cpu_of_all(self._fork_server)
        before, at_first = self._cpu_at
        if before:
            self.record.cpu_s = (now - at_first) / (count - before)
        self._cpu_at = (count, now)


def started_s(pid: int) -> float:
    """By the monotonic clock. (psutil counts from the time of boot, which is in whole seconds.)"""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    booted_s = int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - booted_s)


def cpu_of_all(fork_server: ForkServer) -> float:
    """Of the launcher and every process it has started that is there, in seconds."""
    found = [psutil.Process()]
    for pid in (fork_server.pid, fork_server.light.pid):
        found += psutil.Process(pid).children(recursive=True)
    return sum(sum(process.cpu_times()[:2]) for process in found)


def run_with_strikes(
    job: Job, strikes: Strikes, fork_server: ForkServer, patience_s: float
) -> Record:
    """The run, which is ended at once if it takes too long."""

    def give_up() -> None:
        strikes.record.why_ended = f"not done after {patience_s:g} s"
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    watchdog = threading.Timer(patience_s, give_up)
    with ExitStack() as stack:
        watchdog.start()
        stack.callback(watchdog.cancel)
        try:
            run_job(job, on_event=strikes, fork_server=fork_server)
        except JobFailed as error:
            strikes.record.why_ended = str(error)
    return strikes.record


# What came of it.


@dataclass(frozen=True)
class Outcome:
    """Of one strike or kill, ours or theirs; seconds. None: it was not seen in time."""

    step_s: float
    """Before it."""
    commit_s: float | None
    """To the survivors' next commit under a membership without the victim."""
    discarded: int
    """Steps thrown away, on whom it were most."""
    start_s: float | None
    """From the start of the replacement to the first commit with every worker."""
    stall_s: float | None
    """Of the survivors while it healed, beyond what a calm run has."""
    calm_s: float | None = None
    """The same of two calm times against each other, whichever comes first: A/A."""
    switch_s: float = 0.0
    """The part of it at the switch to the new membership, where that is known."""
    healed_bytes: int = 0
    imported_s: float | None = None
    """Like start_s, but from when the replacement has imported everything."""


def outcomes(record: Record, calm: int) -> list[Outcome]:
    return [_outcome(record, strike, calm) for strike in record.strikes]


def _outcome(record: Record, strike: Strike, calm: int) -> Outcome:
    steps, at_s = record.steps, strike.at_s
    calm_s = gaps([t for t, _ in steps if t <= at_s][-calm:])
    recovered = _first(record, Recovered, at_s)
    committed_s = _commit(steps, recovered.epoch if recovered else None)
    changed = _first(record, PlanChanged, at_s, joined=strike.target)
    full_s = _commit(steps, changed.epoch if changed else None)
    stall_s = calm_stall_s = None
    if committed_s is not None and full_s is not None:
        healing = [t for t, _ in steps if committed_s <= t <= full_s]
        after = [t for t, _ in steps if t >= full_s]
        count = max(len(healing), calm)
        stall_s = extra_stall(healing, after[:count])
        calm_stall_s = extra_stall(after[:count], after[count - 1 : 2 * count - 1])
    return Outcome(
        step_s=statistics.median(calm_s),
        commit_s=committed_s - at_s if committed_s is not None else None,
        discarded=discarded(record),
        start_s=full_s - strike.replaced_s if full_s is not None else None,
        stall_s=stall_s,
        calm_s=calm_stall_s,
        switch_s=changed.stall_s if changed is not None else 0.0,
        healed_bytes=changed.bytes_moved if changed is not None else 0,
    )


def _first(record: Record, kind: type[Any], after_s: float, joined: str = "") -> Any:
    for seen in record.seen:
        is_it = seen.at_s > after_s and isinstance(seen.event, kind)
        if is_it and (not joined or joined in getattr(seen.event, "joining", ())):
            return seen.event
    return None


def _commit(steps: Sequence[tuple[float, StepDone]], epoch: int | None) -> float | None:
    """When the first step of an epoch, or of a later one, was done."""
    found = (at_s for at_s, step in steps if epoch is not None and step.epoch >= epoch)
    return next(found, None)


def discarded(record: Record) -> int:
    """Steps that were skipped, done twice or not applied, or in which a sample was left out."""
    steps = [step for _, step in record.steps]
    if not steps:
        return 0
    doubtful = [step for step in steps if not step.applied or step.tokens != steps[0].tokens]
    missing = steps[-1].step + 1 - len({step.step for step in steps})
    repeated = len(steps) - len({step.step for step in steps})
    return len(doubtful) + missing + repeated


def verdicts(record: Record) -> list[str]:
    """Every worker that was declared out, and why."""
    return [
        seen.event.reason
        for seen in record.seen
        if isinstance(seen.event, Decided) and "worker" in seen.event.details
    ]


def gaps(times: Sequence[float]) -> list[float]:
    return [b - a for a, b in pairwise(times)]


def extra_stall(healing: Sequence[float], after: Sequence[float]) -> float | None:
    """By how much the longest step while a worker heals stands out more than the longest of a calm
    time does. Both are times of commits; without enough of them there is no answer.

    The last of `healing` is the first step of all: it is compared with those after it, since
    on a machine with few cores steps of more workers take longer, the others with each other.
    """
    if len(healing) < 2 or len(after) < 2:
        return None
    *alone, together = gaps(healing)
    calm = gaps(after)
    standing_out = max([_outstanding(alone), together - statistics.median(calm)])
    return standing_out - _outstanding(calm)


def _outstanding(values: Sequence[float]) -> float:
    return max(values) - statistics.median(values) if values else 0.0


def run_to_end(
    config: JobConfig, fork_server: ForkServer, on_event: Callable[[Event], None]
) -> None:
    """A signal that stops the job was meant for the benchmark, which ends with it."""
    result = run_job(prepare_job(config), on_event=on_event, fork_server=fork_server)
    if result.exit_code:
        raise SystemExit(result.exit_code)


def rotated(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """The names in every round, each time another one first."""
    for number in range(rounds):
        first = number % len(names)
        yield [*names[first:], *names[:first]]


# A run with slow steps.


def uneven_run(
    size: Size,
    replicas: int,
    run_dir: Path,
    fork_server: ForkServer,
    *,
    steps: int,
    every: int,
    factor: float,
    step_s: float,
) -> tuple[Record, float]:
    """Every so many steps one takes `factor` times as long, on all workers; also by how much.

    `step_s`: of a usual step. The slowness ends within the slow step, so that it hits only one.
    """
    faults = [
        Fault(
            kind="SLOW",
            target=f"n0.g{worker}",
            at_step=step,
            factor=factor,
            duration_s=(factor - 0.5) * step_s,
        )
        for step in range(every - 1, steps, every)
        for worker in range(replicas)
    ]
    record = Record()
    job = make_job(size, replicas, run_dir, steps=steps, faults=faults)
    run_job(
        job,
        on_event=lambda event: record.seen.append(Seen(time.monotonic(), event)),
        fork_server=fork_server,
    )
    times = {step.step: step.step_time_s for _, step in record.steps}
    slow = [time_s for step, time_s in times.items() if step % every == every - 1]
    usual = [time_s for step, time_s in times.items() if step % every != every - 1]
    return record, statistics.median(slow) / statistics.median(usual)
