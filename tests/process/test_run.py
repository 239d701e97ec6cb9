"""`holdfast run` as a process of its own: what a user, a terminal or a scheduler does to it."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from holdfast.cli.main import main
from support.command_runs import memory_of

pytestmark = [pytest.mark.process, pytest.mark.slow]

JOB = """
[job]
steps = 100_000
run_dir = "out"
[data]
seq_len = 8
micro_batches = 4
[parallel]
replicas = 2
stages = 2
"""


@pytest.fixture
def start(tmp_path):
    """A run that has done a step, and the processes it started."""
    runs = []

    def start():
        (tmp_path / "job.toml").write_text(JOB)
        run = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", "run", "job.toml"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        runs.append(run)
        for line in run.stdout:
            if line.startswith("step "):
                break
        children = psutil.Process(run.pid).children(recursive=True)
        # Two fork servers, coordinator, agent, four workers; the planner and writers, once there.
        assert len(children) >= 8
        return run, children

    yield start
    for run in runs:
        run.kill()
        run.communicate()


def test_ctrl_c_reaches_all_and_stops_at_a_step_boundary(start, tmp_path):
    run, children = start()
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert err == ""
    begins = ("SIGINT: stopping with a checkpoint", "stopped after ", "stopped: ", "goodput ")
    found = [begin for line in out.splitlines() for begin in begins if line.startswith(begin)]
    assert found == list(begins)
    assert "go on: holdfast run job.toml" in out
    assert not any(child.is_running() for child in children)
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["outcome"] == "stopped"
    assert report["steps"] >= 1


def test_killing_the_launcher_leaves_only_memory_which_clean_removes(start, tmp_path, capsys):
    run, children = start()
    run.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert main(["clean", str(tmp_path / "out"), "--yes"]) == 0
    assert memory_of(tmp_path / "out") == []
    assert capsys.readouterr().out.splitlines()[-1].startswith(("removed", "no run has left"))
