"""Emulated devices in a whole job: the same result, at the speed of the model."""

import json

import pytest

from holdfast.plan.timeline import evaluate
from holdfast.runtime.config.emulation import emulation_of
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

JOB = """
[job]
steps = 11
keep_final = true
[data]
seq_len = 8
rows = 1
micro_batches = 4
[parallel]
replicas = 2
stages = 2
devices_per_node = 2
"""
EMULATED = """
[emulate]
unit_ms = 15
latency_ms = 2
bandwidth_mb_per_s = 20
[[faults]]
kind = "SLOW"
target = "n0.g1"
at_step = 4
steps = 3
factor = 3.0
[[faults]]
kind = "SLOW_LINK"
target = "n1.g0>n1.g1"
at_step = 8
steps = 2
factor = 50.0
"""


def run(tmp_path, name, text, fork_server):
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    config = read_config(path, ["--job.run_dir", str(tmp_path / name)])
    job = prepare_job(config)
    report = run_job(job, fork_server=fork_server).report
    lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
    return job, report, [json.loads(line)["step_time_s"] for line in lines]


def test_an_emulated_job_has_the_times_of_its_model_and_the_result_of_a_plain_one(
    tmp_path, fork_server
):
    job, report, times = run(tmp_path, "emulated", JOB + EMULATED, fork_server)
    _, plain, _ = run(tmp_path, "plain", JOB, fork_server)
    assert report.outcome == plain.outcome == "finished"
    expected, found = (read_final(tmp_path / name) for name in ("plain", "emulated"))
    assert all(expected[name].equal(found[name]) for name in expected)
    emulation = emulation_of(job.config)
    assert emulation is not None
    modelled = evaluate(job.plans[0].plan, emulation.profile).iteration_time
    # A device is never quicker than its model; how much slower it is depends on this machine.
    healthy, slow, slow_link = min(times[1:4]), min(times[4:7]), min(times[8:10])
    assert healthy > 0.9 * modelled
    assert slow > 1.5 * modelled
    assert slow_link > 1.3 * modelled
    assert "emulated" in report.model
    assert "emulated" in json.loads((tmp_path / "emulated" / "profile.json").read_text())["source"]
