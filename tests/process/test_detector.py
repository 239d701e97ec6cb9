"""The detector in jobs with real processes: heavy documents are not taken for a slow worker."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from holdfast.observe.events import PlanChanged, StepDone
from holdfast.plan.profile import parse_profile
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.outside import processes

pytestmark = [pytest.mark.process, pytest.mark.slow]

JOB = """
[job]
steps = {steps}
[model]
num_layers = {layers}
[data]
kind = "packed"
seq_len = 64
rows = 1
micro_batches = {micro_batches}
[parallel]
replicas = {replicas}
devices_per_node = 1
[recovery]
plan = "{plan}"
[snapshot]
every = 0
[emulate]
unit_ms = {unit_ms}
attention = 0.5
noise = 0.03
latency_ms = 0.5
[[faults]]
kind = "SLOW"
target = "n1.g0"
at_step = {slow_at}
steps = {slow_steps}
factor = 1.1
"""


REROUTED = {"layers": 2, "replicas": 4, "micro_batches": 8, "plan": "reroute", "unit_ms": 15}
ADAPTED = {"layers": 1, "replicas": 3, "micro_batches": 60, "plan": "auto", "unit_ms": 6}
"""With twenty micro-batches each, a tenth more time is worth moving some of them."""


def judged(tmp_path, job, fork_server, on_event=None):
    """What was said of slowness, in order."""
    path = tmp_path / "job.toml"
    path.write_text(job)
    config = read_config(path, ["--job.run_dir", str(tmp_path / "out")])
    report = run_job(prepare_job(config), on_event=on_event, fork_server=fork_server).report
    assert report.outcome == "finished"
    return told(tmp_path, "slowness_judged")


def told(tmp_path, *kinds):
    lines = (tmp_path / "out" / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [event for event in events if event["event"] in kinds]


BURN = """
import time
while True:
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    time.sleep(0.2)
"""


NUM_STEPS = int(os.environ.get("HOLDFAST_PACKED_STEPS", "2160"))
"""Of the long run; most of them healthy."""


@contextmanager
def other_work():
    """Now and then a processor is busy with something else."""
    process = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def check(said, slow_at, slow_steps):
    """Nothing is slow before; then the slow one is named, probed and taken back. A worker that this
    machine keeps waiting for a while may be suspected, but no probe confirms it.
    """
    verdicts = [event for event in said if event["verdict"] in ("slow", "recovered", "common")]
    assert [event["who"] for event in verdicts] == [["n1.g0"], ["n1.g0"]], said
    named, recovered = verdicts
    assert (named["verdict"], named["probed"]) == ("slow", True)
    assert recovered["verdict"] == "recovered"
    assert slow_at <= named["step"] <= slow_at + 10
    assert slow_at + slow_steps <= recovered["step"] <= slow_at + slow_steps + 10
    assert named["factor"] == pytest.approx(1.1, abs=0.04)
    first = next(event for event in said if event["who"] == ["n1.g0"])
    assert "the work accounted for" in first["reason"]


@pytest.mark.timeout(150)
def test_packed_documents_are_no_slow_workers_and_a_slow_one_is_named_probed_and_taken_back(
    tmp_path, fork_server
):
    sizes = {"steps": 80, "slow_at": 40, "slow_steps": 20}
    with other_work():
        said = judged(tmp_path, JOB.format(**REROUTED, **sizes), fork_server)
    check(said, sizes["slow_at"], sizes["slow_steps"])


LINK = """
[job]
steps = 70
[model]
num_layers = 2
[data]
seq_len = 32
rows = 1
micro_batches = 12
[parallel]
replicas = 3
stages = 2
devices_per_node = 2
[recovery]
plan = "reroute"
[snapshot]
every = 0
[emulate]
unit_ms = 8
latency_ms = 4
noise = 0.02
[[faults]]
kind = "SLOW_LINK"
target = "n1.g0>n1.g1"
at_step = 36
factor = 4.0
"""


@pytest.mark.chaos
@pytest.mark.timeout(150)
def test_a_slow_link_is_suspected_and_in_the_profile(tmp_path, fork_server):
    said = judged(tmp_path, LINK, fork_server)
    assert {name for event in said for name in event["who"]} == {"n1.g0>n1.g1"}, said
    assert said[0]["verdict"] == "suspect"
    assert 36 <= said[0]["step"] <= 46
    assert said[0]["factor"] == pytest.approx(4.0, rel=0.2)
    profile = parse_profile((tmp_path / "out" / "profile.json").read_text())
    assert list(profile.links) == ["n1.g0>n1.g1"]
    assert "emulated" in profile.source


SUCCEEDED = """
[job]
steps = 84
[model]
num_layers = 2
[data]
seq_len = 32
rows = 1
micro_batches = 12
[parallel]
replicas = 3
devices_per_node = 1
[snapshot]
every = 0
[emulate]
unit_ms = 10
noise = 0.02
[[faults]]
kind = "SLOW"
target = "n1.g0"
at_step = 24
factor = 2.0
"""


@pytest.mark.chaos
@pytest.mark.timeout(150)
def test_a_successor_of_the_coordinator_keeps_the_plan_for_a_slow_worker(tmp_path, fork_server):
    changed, killed = [], []

    def hear(event):
        if isinstance(event, PlanChanged):
            changed.append(event.step)
        coordinator = processes(fork_server).get("coordinator", 0)
        is_due = isinstance(event, StepDone) and changed and event.step >= changed[0] + 3
        if is_due and coordinator and not killed:
            os.kill(coordinator, signal.SIGKILL)
            killed.append(event.step)

    said = judged(tmp_path, SUCCEEDED, fork_server, hear)
    assert killed
    assert killed[0] < 60, "it has time to learn everything anew"
    assert len(changed) == 1, "the plan stays"
    assert [e["who"] for e in said if e["verdict"] == "slow"] == [["n1.g0"]], said
    assert not [e for e in said if e["verdict"] == "recovered"], said


REAL = """
[job]
steps = 130
threads = 1
[data]
seq_len = 64
rows = 4
micro_batches = 8
[parallel]
replicas = 2
[snapshot]
every = 0
[[faults]]
kind = "SLOW"
target = "n0.g1"
at_step = 60
steps = 40
factor = 4.0
"""


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_slow_worker_of_a_real_device_is_named_probed_adapted_to_and_taken_back(
    tmp_path, fork_server
):
    """Nothing is emulated: its computations take longer where they are measured. Other work on the
    same cores makes them longer, too, so this wants a machine with a core for each worker.
    """
    said = judged(tmp_path, REAL, fork_server)
    ours = [event for event in said if event["who"] == ["n0.g1"]]
    # How slow it is, it may be said again: other work on this machine makes steps noisy.
    verdicts = [event for event in ours if event["verdict"] in ("slow", "recovered")]
    kinds = [event["verdict"] for event in verdicts]
    assert (kinds[:1], kinds[-1:]) == (["slow"], ["recovered"]), said
    named, recovered = verdicts[0], verdicts[-1]
    assert named["probed"], said
    assert 60 <= named["step"] <= 85, said
    assert 2 < named["factor"] < 8, said
    assert recovered["step"] >= 100, said
    entered = [event for event in told(tmp_path, "plan_considered") if event["entered"]]
    assert any("n0.g1 takes" in event["asked"] for event in entered)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_two_thousand_steps_of_packed_documents_and_a_slow_worker_that_is_adapted_to(
    tmp_path, fork_server
):
    """Nothing is adapted while all are healthy; then the slow one gets less to do, and all of it
    again when it has recovered.
    """
    sizes = {"steps": NUM_STEPS, "slow_at": NUM_STEPS - 160, "slow_steps": 80}
    with other_work():
        said = judged(tmp_path, JOB.format(**ADAPTED, **sizes), fork_server)
    check(said, sizes["slow_at"], sizes["slow_steps"])
    entered = [e for e in told(tmp_path, "plan_considered") if e["entered"]]
    less, home = entered
    assert less["asked"].startswith("n1.g0 takes 1.1 times as long")
    assert home["asked"] == "all workers of the job's own plan are there"
    changed = told(tmp_path, "plan_changed")
    assert len(changed) == len(entered)
    assert changed[0]["step"] <= sizes["slow_at"] + 30
    assert sizes["slow_at"] + sizes["slow_steps"] <= changed[1]["step"] < NUM_STEPS
