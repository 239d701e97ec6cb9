"""The alert rules and the dashboard in examples/monitoring ask for metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.observe.prometheus import metrics_text
from support.made_runs import disturbed_run

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def asked_for(text):
    return set(re.findall(r"\bholdfast_\w+", text))


def test_every_metric_is_there():
    run = disturbed_run().model()
    run.snapshot_step = run.next_step - 1
    there = set(re.findall(r"^(holdfast_\w+)", metrics_text(run, run.now_s).decode(), re.M))
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    assert asked_for(" ".join(expressions)) <= there
    assert asked_for((FOLDER / "alerts.yml").read_text()) <= there


@needs_promtool
def test_the_rules_fire_when_they_should():
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=FOLDER, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
