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
    for sealed, equal, protected in run(cluster, tmp_path, **options):
        # The last one is dropped at the end.
        assert [version.step for version, _ in sealed] == list(range(1, TASK.num_steps))
        assert equal == [True] * (TASK.num_steps - 1)
        assert all(protected)
        assert protected or "replicas" not in options


def test_stages_that_wait_copy_in_their_gaps(cluster, tmp_path) -> None:
    found = run(cluster, tmp_path, stages=2)
    assert sum(cost.in_bubbles for sealed, _, _ in found for _, cost in sealed) > 0
