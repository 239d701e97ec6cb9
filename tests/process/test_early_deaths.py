"""Workers that die or stop before they have done anything: nothing is lost with them, and the end
of the job does not wait for them.
"""

import signal
import time
from contextlib import suppress

import psutil
import pytest

from holdfast.observe.events import Recovered, WorkersReady
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

SLOW_STEPS = "\n[emulate]\nunit_ms = 40\n"
FAILS_ON_THE_SECOND = """
import os
import torch
class Data:
    def __init__(self):
        if os.environ.get("RANK") == "1":
            raise MemoryError("no room for it")
    def __len__(self):
        return 100
    def __getitem__(self, number):
        return torch.zeros(17, dtype=torch.long)
"""
LATE_S = 25.0
"""A joiner that says nothing was waited for as long as an agent is at the end of a job: 30 s."""


def workers_of(run: CommandRun) -> dict[str, psutil.Process]:
    """By name; also those that have not said a word."""
    return {name: process for name, process in processes_by_log(run).items() if name[0] == "n"}


@pytest.mark.chaos
def test_all_workers_die_before_the_first_step(tmp_path):
    """What is lost is only what the seed says."""
    job = write_job(tmp_path, 3)
    job.write_text(job.read_text() + SLOW_STEPS)
    run = CommandRun(job)
    assert run.wait_until(lambda: run.has_logged(WorkersReady)), end_of(run)
    for process in workers_of(run).values():
        process.kill()
    assert run.steps == 0
    assert run.wait() == 0, end_of(run)
    assert sorted(kept_steps(run.run_dir)) == [0, 1, 2]
    assert processes_of(run.run_dir) == memory_of(run.run_dir) == []


def test_a_worker_that_fails_at_every_start_ends_the_job(tmp_path):
    """Where no other can do its work; the reason says which one, and why."""
    (tmp_path / "own.py").write_text(FAILS_ON_THE_SECOND)
    job = write_job(tmp_path, 3, replicas=1, stages=2)
    job.write_text(job.read_text().replace("[data]", '[data]\nfactory = "own.py:Data"'))
    run = CommandRun(job)
    assert run.wait() == 1, end_of(run)
    assert "n1.g0 cannot be started again" in end_of(run)[-1]
    assert "no room for it" in end_of(run)[-1]
    assert processes_of(run.run_dir) == memory_of(run.run_dir) == []


@pytest.mark.chaos
def test_a_joiner_is_stopped_before_its_first_beat(tmp_path):
    job = write_job(tmp_path, 60)
    job.write_text(job.read_text() + "\n[emulate]\nunit_ms = 5\n")
    run = CommandRun(job)
    assert run.wait_steps(5), end_of(run)
    victim = workers_of(run)["n1.g0"]
    victim.kill()

    def joiner() -> psutil.Process | None:
        found = workers_of(run).get("n1.g0")
        return found if found is not None and found.pid != victim.pid else None

    assert run.wait_until(lambda: joiner() is not None, poll_s=0), end_of(run)
    process = joiner()
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        assert run.wait_steps(60), end_of(run)
        begun = time.monotonic()
        assert run.wait() == 0, end_of(run)
        assert time.monotonic() - begun < LATE_S
    finally:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    assert run.has_logged(Recovered)
    assert processes_of(run.run_dir) == memory_of(run.run_dir) == []
