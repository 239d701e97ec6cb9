"""A version is judged over all nodes of its job."""

import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.load.inspection import inspect_memory
from support.kept_state import JOB, KeptWorkers
from support.random_plans import make_units
from support.snapshots import random_state

PLAN = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=2, devices_per_node=1)


@pytest.fixture
def kept(tmp_path):
    """A job of four nodes in the middle of training: every node owns arenas of its own."""
    kept = KeptWorkers(PLAN, tmp_path)
    kept.enter()
    kept.train({step: random_state(PLAN, seed=step) for step in range(1, 5)})
    yield kept
    kept.close()


def test_versions_of_a_running_job_are_complete(kept, tmp_path):
    found = inspect_memory(tmp_path, verify_bytes=True)
    assert not found.is_damaged
    newest = found.versions[0]
    assert {line.job for line in found.versions} == {JOB}
    assert (newest.step, newest.is_complete) == (3, True)
    assert set(newest.holders) == set(PLAN.workers)
    assert {line.node for line in found.arenas} == {"n0", "n1", "n2", "n3"}


def test_a_lost_node_is_made_up_for_by_parity(kept, tmp_path):
    kept.arenas["n1"].lose()
    line = inspect_memory(tmp_path, verify_bytes=True).versions[0]
    assert (line.is_complete, line.is_degraded) == (True, True)


def test_two_nodes_that_hold_the_same_are_too_many(kept, tmp_path):
    for node in ("n0", "n2"):
        kept.arenas[node].lose()
    line = inspect_memory(tmp_path, verify_bytes=False).versions[0]
    assert (line.step, line.is_complete) == (3, False)
    assert "no node has" in line.reason
