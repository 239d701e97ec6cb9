"""Snapshots of every step under the real engine: whole, bit-identical, and mostly in gaps."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.plan.build import regular_plan
from holdfast.plan.text import format_plan
from support.snapshot_work import train_with_snapshots
from support.training import Task

pytestmark = [pytest.mark.process, pytest.mark.slow]

TASK = Task(num_steps=6, num_micro_batches=4, dtype="float32")


def run(cluster, folder: Path, **options: Any) -> list[Any]:
    plan = regular_plan(
        TASK.units, micro_batches=TASK.num_micro_batches, devices_per_node=1, **options
    )
    text, store = format_plan(plan), cluster.fresh_store()
    return cluster.run(
        train_with_snapshots, [(worker, store, text, TASK, folder) for worker in plan.workers]
    )


@pytest.mark.parametrize(
    "options",
    [
        {"stages": 2},
        {"stages": 2, "schedule": "zero-bubble"},
        {"replicas": 2},
        {"replicas": 2, "stages": 2},
        {"tensor": 2},
    ],
    ids=str,
)
def test_every_version_is_the_state_of_its_step(cluster, tmp_path, options) -> None:
    for reports, equal, protected in run(cluster, tmp_path, **options):
        assert len(reports) == TASK.num_steps
        assert [report.version.step for report in reports] == list(range(1, TASK.num_steps + 1))
        assert all(report.sealed for report in reports[:-1])  # the last is dropped at the end
        assert equal == [True] * (TASK.num_steps - 1)
        assert all(protected)
        assert protected or "replicas" not in options


def test_stages_that_wait_copy_in_their_gaps(cluster, tmp_path) -> None:
    found = run(cluster, tmp_path, stages=2)
    inside = sum(r.bytes_in_gaps for reports, _, _ in found for r in reports)
    assert inside > 0
