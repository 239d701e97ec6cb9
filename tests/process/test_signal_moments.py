"""Signals as schedulers send them, at any moment: the promised exit code in time, a checkpoint, and
nothing left.

Short here, ten moments for each signal with `make chaos`.
"""

import os
import random
import signal
import time
from contextlib import suppress

import psutil
import pytest

from holdfast.observe.events import JobEnded, StopRequested
from holdfast.observe.journal import read_journal
from holdfast.snapshot.disk.checkpoints import valid_checkpoints
from support.command_runs import (
    CommandRun,
    end_of,
    kept_steps,
    memory_of,
    processes_by_log,
    processes_of,
    write_job,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(200)]

END_S = 15.0
"""On a machine that is the job's own; see `times_busy`."""
START_S = 5.0
MOST_REDONE = 3
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
MOMENTS = ("start", "training", "recovery", "restore", "going on")


def kill_workers(run: CommandRun, number: int) -> None:
    workers = [process for name, process in processes_by_log(run).items() if name[0] == "n"]
    for process in workers[:number]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def run_until(folder, moment: str, source: random.Random) -> CommandRun:
    """A run in the moment in which it is to get its signal."""
    job = write_job(folder, 100_000, replicas=2, stages=2)
    run = CommandRun(job)
    if moment == "start":
        time.sleep(source.uniform(0, START_S))
        return run
    # A job whose workers all die before its first snapshot has lost its state, and says so.
    assert run.wait_steps(source.randint(5, 20)), end_of(run)
    if moment == "going on":
        run.kill_all()
        run = CommandRun(job)
        time.sleep(source.uniform(0, START_S))
    elif moment != "training":
        kill_workers(run, 1 if moment == "recovery" else 4)
    if moment != "start":
        time.sleep(source.uniform(0, 0.3))
    return run


def times_busy() -> float:
    """How many processes want to run for each core: everything takes so much longer."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def strike(folder, number: int, moment: str, source: random.Random) -> float:
    """How long it took from the signal to the end."""
    run = run_until(folder, moment, source)
    try:
        sent = time.monotonic()
        run.signal(number)
        code = run.wait(END_S * times_busy())
        took_s = time.monotonic() - sent
        assert code == 128 + number, (moment, end_of(run))
        check_end(run, moment)
    finally:
        if not run.is_over:
            run.kill_all()
        for name in memory_of(run.run_dir):
            os.unlink(f"/dev/shm/{name}")
    return took_s


def check_end(run: CommandRun, moment: str) -> None:
    assert processes_of(run.run_dir) == [], moment
    if not run.has_begun:  # it was ended before it could do anything, and has touched nothing
        return
    steps = kept_steps(run.run_dir) if (run.run_dir / "metrics.jsonl").is_file() else {}
    text = run.output.read_text()
    if "and not done within" in text:  # the machine was too slow for the grace time
        assert "stays in memory" in text
        return
    assert memory_of(run.run_dir) == [], (moment, end_of(run))
    if steps:
        saved = max(version.step for version in valid_checkpoints(run.run_dir / "checkpoints"))
        assert saved >= max(steps) + 1 - MOST_REDONE, (moment, end_of(run))
        assert f"go on: holdfast run {run.run_dir.parent}/job.toml" in text


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        pytest.param(signal.SIGTERM, "going on", marks=pytest.mark.chaos),
        pytest.param(signal.SIGHUP, "recovery", marks=pytest.mark.chaos),
        (signal.SIGUSR1, "restore"),
        (signal.SIGUSR2, "start"),
    ],
)
def test_a_signal_in_the_worst_moment(tmp_path, number, moment):
    strike(tmp_path, number, moment, random.Random(3))


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)
def test_a_signal_at_ten_random_moments(tmp_path, number, capsys):
    seed = int(os.environ.get("HOLDFAST_CHAOS_SEED", random.SystemRandom().randrange(10**9)))
    source = random.Random(seed)
    took, busiest = {}, 1.0
    with capsys.disabled():
        print(f"\n{number.name}, HOLDFAST_CHAOS_SEED={seed}")
    for at in range(10):
        moment = MOMENTS[at % len(MOMENTS)]
        seconds = strike(tmp_path / str(at), number, moment, source)
        took[moment] = max(seconds, took.get(moment, 0.0))
        busiest = max(busiest, times_busy())
    with capsys.disabled():
        shown = ", ".join(f"{moment} {seconds:.1f} s" for moment, seconds in took.items())
        print(f"{shown}; {busiest:.1f} processes for each core")


@pytest.fixture
def started():
    """Starts runs; what is left of them is killed."""
    runs = []

    def start(job_file):
        runs.append(CommandRun(job_file))
        return runs[-1]

    yield start
    for run in runs:
        if not run.is_over:
            run.kill_all()
        for name in memory_of(run.run_dir):
            os.unlink(f"/dev/shm/{name}")


def test_a_checkpoint_on_request_and_where_all_processes_are(tmp_path, started):
    """Both go on; other meanings are settings."""
    signals = 'signals = {SIGUSR1 = "checkpoint", SIGUSR2 = "ignore", SIGHUP = "stop_now"}'
    job = write_job(tmp_path, 100_000, job=signals, snapshot="persist_every_s = 1e6")
    run = started(job)
    assert run.wait_steps(3), end_of(run)
    run.signal(signal.SIGUSR2)
    run.signal(signal.SIGUSR1)
    assert run.wait_until(lambda: bool(valid_checkpoints(run.run_dir / "checkpoints")))
    run.signal(signal.SIGQUIT)
    assert run.wait_until(lambda: "n1.g0, process " in run.output.read_text())
    assert run.wait_steps(run.steps + 3)
    text = run.output.read_text()
    for name in ("launcher", "coordinator", "agent-n0", "agent-n1", "n0.g0", "n1.g0"):
        assert f"{name}, process " in text
    assert "in run_step" in text
    events = read_journal(run.run_dir / "journal.jsonl")
    assert not any(isinstance(event, StopRequested) for event in events)
    run.signal(signal.SIGHUP)
    assert run.wait(END_S) == 129
    (ended,) = [e for e in read_journal(run.run_dir / "journal.jsonl") if isinstance(e, JobEnded)]
    assert (ended.outcome, ended.reason) == ("stopped", "SIGHUP, so at once")


def test_ctrl_c_again_ends_at_once(tmp_path, started):
    run = started(write_job(tmp_path, 100_000, job="grace_s = 60"))
    assert run.wait_steps(3), end_of(run)
    for process in processes_by_log(run).values():
        process.suspend()  # nothing can be stopped cleanly any more
    sent = time.monotonic()
    run.signal(signal.SIGINT)
    time.sleep(0.05)
    run.signal(signal.SIGINT)
    assert run.wait(END_S) == 130
    assert time.monotonic() - sent < END_S
    assert processes_of(run.run_dir) == []
    assert "the state after" in run.output.read_text()
