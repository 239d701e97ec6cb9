"""Copies of a running job lie in the bubbles of its plan, and again after every change of it."""

import pytest

from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.sample import some

pytestmark = [pytest.mark.process, pytest.mark.slow]

JOB = """
[job]
steps = 18
[data]
seq_len = 8
rows = 1
micro_batches = 6
[parallel]
stages = 3
devices_per_node = 1
[emulate]
unit_ms = 4
latency_ms = 1
[[change]]
at_step = 9
stages = 2
schedule = "gpipe"
"""


@pytest.mark.parametrize("schedule", some(["1f1b", "zero-bubble"], ["zero-bubble"]))
def test_copies_are_placed_under_every_plan(tmp_path, fork_server, schedule):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    options = ["--job.run_dir", str(tmp_path / "run"), "--parallel.schedule", schedule]
    report = run_job(prepare_job(read_config(path, options)), fork_server=fork_server).report
    assert report.copied_bytes > 0
    assert report.copied_in_bubbles is not None
    assert 0 < report.copied_in_bubbles <= 1
    for worker, num_plans in (("n0.g0", 2), ("n1.g0", 2), ("n2.g0", 1)):
        log = (tmp_path / "run" / "logs" / f"{worker}.log").read_text()
        assert log.count("chunks") >= num_plans, f"{worker} has not placed its copies: {log}"
