"""Jobs that outlive their launcher, and how they are watched and stopped: on addresses of this
machine as hosts, so that no root is needed. With more of the network: tests/hosts.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.launch.run_lock import living_launcher
from support.host_jobs import STEPS, events, happened, steps_done, wait_for, write_job

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

HOLDFAST = [sys.executable, "-m", "holdfast"]
WAIT_S = 120.0


def holdfast(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HOLDFAST, *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def start_agent(number: int, place: str, folder: Path) -> "subprocess.Popen[bytes]":
    command = [*HOLDFAST, "agent", "--join", place, "--host", f"127.0.0.{number + 2}"]
    command += ["--name", f"n{number}", "--folder", str(folder / "agents")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def detached(tmp_path):
    """Jobs in the background; none is left behind."""
    shared, agents = tmp_path / "shared", []

    def start(unit_ms: int, every: int = 0) -> Path:
        place, before = f"dir:{shared}", steps_done(shared)
        for agent in agents:
            assert agent.wait(WAIT_S) == 0
        job = write_job(tmp_path, replicas=2, unit_ms=unit_ms, every=every)
        found = holdfast("run", str(job), "--rdzv", place, "--net.address", "127.0.0.1", "--detach")
        assert found.returncode == 0, found.stderr
        assert f"holdfast attach {place}" in found.stdout
        agents.extend(start_agent(number, place, tmp_path) for number in range(2))
        wait_for(lambda: steps_done(shared) >= before + 3, "three steps", WAIT_S)
        return shared

    yield start
    if (launcher := living_launcher(shared)) is not None:
        os.kill(launcher, signal.SIGKILL)
    for agent in agents:
        agent.terminate()
        agent.wait(WAIT_S)


def test_a_job_goes_on_without_its_launcher_and_is_stopped(detached) -> None:
    shared = detached(unit_ms=20)
    launcher = living_launcher(shared)
    assert launcher is not None
    os.kill(launcher, signal.SIGKILL)
    wait_for(lambda: happened(shared, "CoordinatorStarted"), "a successor", WAIT_S)
    again = holdfast("run", str(shared.parent / "job.toml"), "--rdzv", f"dir:{shared}")
    assert again.returncode == 1
    assert "a job runs at dir:" in again.stderr
    stopped = holdfast("stop", f"dir:{shared}")
    assert stopped.returncode == 0, stopped.stderr
    assert "stopping with a checkpoint" in stopped.stdout
    watched = holdfast("attach", f"dir:{shared}")
    assert watched.returncode == 143, watched.stderr
    assert happened(shared, "JobEnded")[-1].outcome == "stopped"
    assert not happened(shared, "WorkerLost")


@pytest.mark.chaos
def test_a_job_is_watched_to_its_end(detached) -> None:
    shared = detached(unit_ms=4)
    watched = holdfast("attach", str(shared))
    assert watched.returncode == 0, watched.stderr
    assert f"step {STEPS}/{STEPS}" in watched.stdout or "finished" in watched.stdout
    assert happened(shared, "JobEnded")[-1].outcome == "finished"
    assert [type(event).__name__ for event in events(shared)].count("JobEnded") == 1


@pytest.mark.chaos
def test_the_same_command_goes_on_after_a_stop(detached) -> None:
    """Under another coordinator, from the journal at the rendezvous."""
    shared = detached(unit_ms=10, every=1)
    assert holdfast("stop", f"dir:{shared}").returncode == 0
    assert holdfast("attach", f"dir:{shared}").returncode == 143
    wait_for(lambda: living_launcher(shared) is None, "the launcher's end", WAIT_S)
    detached(unit_ms=4, every=1)
    assert holdfast("attach", str(shared)).returncode == 0
    assert [event.run for event in happened(shared, "JobStarted")] == [1, 2]
    lines = (shared / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(STEPS))


def test_on_one_machine_a_job_is_detached_watched_and_stopped(tmp_path) -> None:
    run_dir = tmp_path / "run"
    job = write_job(tmp_path, replicas=2, unit_ms=20)
    found = holdfast("run", str(job), "--run_dir", str(run_dir), "--detach")
    assert found.returncode == 0, found.stderr
    assert f"holdfast stop {run_dir}" in found.stdout
    wait_for(lambda: steps_done(run_dir) >= 2, "step 2", WAIT_S)
    assert holdfast("stop", str(run_dir)).returncode == 0
    assert holdfast("attach", str(run_dir)).returncode == 143
    wait_for(lambda: living_launcher(run_dir) is None, "the launcher's end", WAIT_S)


def test_what_is_wrong_with_a_detached_job_is_said(tmp_path) -> None:
    job = write_job(tmp_path)
    found = holdfast("run", str(job), "--run_dir", str(tmp_path / "run"), "--lr", "x", "--detach")
    assert found.returncode != 0
    assert "lr" in found.stderr
    assert not (tmp_path / "run").exists()
    nowhere = holdfast("attach", str(tmp_path / "run"))
    assert nowhere.returncode == 1
    assert "is no run directory" in nowhere.stderr
