import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.observe.prometheus import metrics_text
from support.made_runs import MadeRun, disturbed_run


def parsed(run, clock_s=None):
    text = metrics_text(run, run.now_s if clock_s is None else clock_s).decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_run_in_numbers():
    run = disturbed_run().end().model()
    found = parsed(run)
    assert found["holdfast_steps_total",] == 64
    assert found["holdfast_steps_redone_total",] == 4
    assert found["holdfast_failures_total", "hung"] == 1
    assert found["holdfast_failures_total", "error"] == 0
    assert found["holdfast_recoveries_total", "restore"] == 1
    assert found["holdfast_workers", "alive"] == 4
    assert found["holdfast_step_time_seconds_count",] == 64
    assert found["holdfast_stall_seconds_bucket", "3.0"] == 3
    assert found["holdfast_job_state", "finished"] == 1
    spent = sum(v for (name, *_), v in found.items() if name == "holdfast_time_seconds")
    assert spent == pytest.approx(found["holdfast_wall_seconds",])


def test_ages_grow_while_it_runs():
    run = MadeRun().start().steps(9).checkpoint().steps(9).model()
    assert parsed(run)["holdfast_checkpoint_age_seconds",] == pytest.approx(0.9)
    assert parsed(run, run.now_s + 600)["holdfast_checkpoint_age_seconds",] == pytest.approx(600.9)
    assert parsed(run, run.now_s + 600)["holdfast_job_state", "silent"] == 1


def test_before_the_first_step():
    assert ("holdfast_loss",) not in parsed(MadeRun().start().model())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_them():
    text = metrics_text(disturbed_run().model(), 2e6)
    subprocess.run(["promtool", "check", "metrics"], input=text, check=True, capture_output=True)
