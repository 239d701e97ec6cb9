"""The same command again: whatever was killed, and whenever, training goes on and ends as if
nothing had happened.

Short here, many times with `make chaos`; the seed is printed and HOLDFAST_CHAOS_SEED repeats it.
"""

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from holdfast.observe.events import JobEnded, JobStarted
from holdfast.observe.journal import read_journal
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.command_runs import (
    CommandRun,
    command,
    end_of,
    kept_steps,
    memory_of,
    processes_of,
    restores,
    same_training,
    steps_again,
    write_job,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(280)]

NUM_STEPS = 60
START_S = 5.0
"""About as long as a run takes until its first step."""
MOST_REDONE = 3
"""With a snapshot of every step."""


@pytest.fixture(scope="module")
def calm(tmp_path_factory, fork_server):
    """The same training undisturbed."""
    folder = tmp_path_factory.mktemp("calm")
    config = read_config(write_job(folder, NUM_STEPS), [])
    result = run_job(prepare_job(config), fork_server=fork_server)
    assert result.report.outcome == "finished"
    assert memory_of(folder / "run") == []
    return folder / "run"


def draw(source: random.Random) -> tuple[int, float]:
    """When to kill: after so many steps of a run (0: from its start), and how much later."""
    steps = source.choice((0, source.randint(1, NUM_STEPS // 4)))
    return steps, source.uniform(0, 0.2 if steps else START_S)


def kill_at(run: CommandRun, moment: tuple[int, float]) -> bool:
    """False: it ended before."""
    steps, delay_s = moment
    if steps and not run.wait_steps(steps):
        return False
    time.sleep(delay_s)
    if run.is_over:
        return False
    run.kill_all()
    return True


def run_with_kills(folder, calm, moments) -> str:
    """Everything is killed at these moments, then it is left alone; what was printed."""
    job = write_job(folder, NUM_STEPS)
    for moment in moments:
        run = CommandRun(job)
        had_version = bool(kept_steps(run.run_dir)) if run.steps else False
        if not kill_at(run, moment):
            break
        # What the run before had agreed on is in memory, and stays there.
        assert not had_version or memory_of(run.run_dir), moment
    last = CommandRun(job)
    assert last.wait() == 0, end_of(last)
    same_training(last.run_dir, calm)
    for restored in restores(last.run_dir):
        assert restored.goes_on
        assert restored.reason == "memory still holds it whole", restored
        assert restored.steps_redone <= MOST_REDONE, restored
    assert memory_of(last.run_dir) == []
    assert processes_of(last.run_dir) == []
    text = last.output.read_text()
    told = [restored.steps_redone for restored in restores(last.run_dir)]
    assert steps_again(text)[: len(told)] == told
    return text


def test_everything_is_killed(tmp_path, calm):
    run_with_kills(tmp_path, calm, [(12, 0.03)])


@pytest.mark.chaos
def test_everything_is_killed_at_three_moments(tmp_path, calm):
    run_with_kills(tmp_path, calm, [(1, 0.01), (0, START_S / 2), (12, 0.03)])


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_everything_is_killed_at_twenty_random_moments(tmp_path, calm, capsys):
    seed = int(os.environ.get("HOLDFAST_CHAOS_SEED", random.SystemRandom().randrange(10**9)))
    source = random.Random(seed)
    with capsys.disabled():
        print(f"\nHOLDFAST_CHAOS_SEED={seed}")
    again: list[int] = []
    num_kills = 0
    for number in range(5):
        moments = [draw(source) for _ in range(4)]
        text = run_with_kills(tmp_path / str(number), calm, moments)
        again += steps_again(text)
        num_kills += len(moments)
    with capsys.disabled():
        print(f"{num_kills} times everything was killed; steps done again: {again}")


@pytest.mark.chaos
def test_the_launcher_alone_is_killed(tmp_path, calm):
    """All other processes end by themselves, and their memory is there for the next run."""
    job = write_job(tmp_path, NUM_STEPS)
    run = CommandRun(job)
    assert run.wait_steps(5)
    others = run.processes()[1:]
    run.signal(signal.SIGKILL)
    assert run.wait() == 137
    deadline = time.monotonic() + 10
    while any(p.is_running() and p.status() != "zombie" for p in others):
        assert time.monotonic() < deadline, processes_of(run.run_dir)
        time.sleep(0.01)
    assert memory_of(run.run_dir)
    again = CommandRun(job)
    assert again.wait() == 0, end_of(again)
    (restored,) = restores(run.run_dir)
    assert restored.reason == "memory still holds it whole"
    same_training(run.run_dir, calm)
    assert memory_of(run.run_dir) == []


@pytest.mark.chaos
def test_from_disk_where_memory_is_gone_and_twice_in_a_row(tmp_path, calm):
    job = write_job(tmp_path, NUM_STEPS)
    run = CommandRun(job)
    assert run.wait_until(lambda: any(run.run_dir.glob("checkpoints/step-*[0-9]/holdfast.json")))
    run.kill_all()
    for name in memory_of(run.run_dir):
        os.unlink(f"/dev/shm/{name}")
    first = CommandRun(job)
    assert first.wait_until(lambda: first.has_logged(JobStarted, 2))
    first.kill_all()  # before its first checkpoint, before its first step
    second = CommandRun(job)
    assert second.wait() == 0, end_of(second)
    assert restores(run.run_dir)[0].reason.startswith(f"checkpoint {run.run_dir}/checkpoints/step-")
    same_training(run.run_dir, calm)


@pytest.mark.chaos
def test_the_kill_falls_into_the_first_checkpoint(tmp_path, calm):
    """Tried again in another directory until it does."""
    for number in range(8):
        job = write_job(tmp_path / str(number), NUM_STEPS)
        run = CommandRun(job)
        folder = run.run_dir / "checkpoints"
        found = run.wait_until(lambda folder=folder: any(folder.glob("step-*")), poll_s=0)
        assert found, end_of(run)
        run.kill_all()
        names = os.listdir(folder)
        if all(name.endswith(".part") for name in names):
            break
    else:
        raise AssertionError("no kill fell into the write of a checkpoint")
    again = CommandRun(job)
    assert again.wait() == 0, end_of(again)
    assert restores(run.run_dir)[0].reason == "memory still holds it whole"
    same_training(run.run_dir, calm)
    for other in range(number):
        _clean(tmp_path / str(other) / "run")


def _clean(run_dir):
    for name in memory_of(run_dir):
        os.unlink(f"/dev/shm/{name}")


def num_started(run_dir):
    path = run_dir / "journal.jsonl"
    events = read_journal(path) if path.is_file() else []
    return sum(isinstance(event, JobStarted) for event in events)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_requeue_loop(tmp_path, calm):
    """`while ! holdfast run job.toml; do :; done`, with everything below it killed now and then."""
    import psutil

    job = write_job(tmp_path, NUM_STEPS)
    line = " ".join(command(job))
    with (tmp_path / "output.txt").open("ab") as output:
        loop = subprocess.Popen(["bash", "-c", f"while ! {line}; do :; done"], stdout=output)
    source = random.Random(7)

    def kill_now_and_then():
        """Once another run has begun, some time after that."""
        for number in range(1, 5):
            while num_started(tmp_path / "run") < number and loop.poll() is None:
                time.sleep(0.05)
            time.sleep(source.uniform(0, 3))
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(loop.pid).children(recursive=True):
                    child.kill()

    killer = threading.Thread(target=kill_now_and_then, daemon=True)
    killer.start()
    assert loop.wait(500) == 0
    killer.join()
    same_training(tmp_path / "run", calm)
    assert num_started(tmp_path / "run") >= 2
    events = read_journal(tmp_path / "run" / "journal.jsonl")
    assert [e.outcome for e in events if isinstance(e, JobEnded)] == ["finished"]
    assert memory_of(tmp_path / "run") == []


def test_two_runs_in_one_directory_at_once_are_refused(tmp_path):
    job = write_job(tmp_path, 100_000)
    first = CommandRun(job)
    assert first.wait_steps(1)
    second = subprocess.run(command(job), capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"{first.run_dir} is in use: process {first.process.pid} runs a job in it" in (
        second.stderr
    )
    first.signal(signal.SIGTERM)
    assert first.wait() == 143
    assert f"go on: holdfast run {job}" in first.output.read_text()


@pytest.mark.chaos
def test_what_was_stopped_goes_on_from_its_checkpoint(tmp_path, calm):
    job = write_job(tmp_path, NUM_STEPS)
    first = CommandRun(job)
    assert first.wait_steps(7)
    first.signal(signal.SIGTERM)
    assert first.wait(15) == 143
    assert memory_of(first.run_dir) == []
    done = max(kept_steps(first.run_dir)) + 1
    assert (first.run_dir / "checkpoints" / f"step-{done}").is_dir()
    second = CommandRun(job)
    assert second.wait() == 0, end_of(second)
    (restored,) = restores(first.run_dir)
    assert (restored.step, restored.steps_redone) == (done, 0)
    same_training(first.run_dir, calm)
    third = CommandRun(job)
    assert third.wait() == 0
    assert f"{first.run_dir}: finished before, all {NUM_STEPS} steps are done" in (
        third.output.read_text()
    )


def test_a_reader_that_goes_away_ends_no_training(tmp_path):
    job = write_job(tmp_path, NUM_STEPS)
    line = " ".join(command(job))
    shell = ["bash", "-c", f"set -o pipefail; {line} | head -n 3"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert len(kept_steps(tmp_path / "run")) == NUM_STEPS
