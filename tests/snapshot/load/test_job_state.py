"""What was saved under one plan is loaded under any, from memory or from a checkpoint."""

import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.disk.job_writer import JobWriter
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.job_state import CannotRestore, load_checkpoint, load_snapshot
from support.kept_state import JOB, KeptWorkers, check, make_slices
from support.random_plans import make_units
from support.snapshots import random_state

PLAN = regular_plan(make_units(2), replicas=3, micro_batches=3, devices_per_node=1)
OTHER = regular_plan(make_units(2), stages=2, micro_batches=3, devices_per_node=1)
STATES = {step: random_state(PLAN, seed=step) for step in range(1, 5)}
SAVED = Version(3, 1)


@pytest.fixture
def kept(tmp_path):
    kept = KeptWorkers(PLAN, tmp_path)
    kept.enter()
    kept.train(STATES)
    yield kept
    kept.close()


@pytest.mark.parametrize("plan", [PLAN, OTHER])
def test_every_worker_of_any_plan_gets_its_part(kept, plan):
    for worker in plan.workers:
        found = kept.load(plan, worker, SAVED, STATES[3])
        assert found.num_updates == 3


def test_a_lost_node_is_computed_from_parity(kept):
    kept.arenas["n1"].lose()
    found = kept.load(PLAN, "n0.g0", SAVED, STATES[3])
    assert found.bytes_by_origin["parity"] > 0


def test_two_lost_nodes_are_too_many(kept):
    kept.arenas["n1"].lose()
    kept.arenas["n2"].lose()
    with pytest.raises(CannotRestore, match="no version can be loaded") as raised:
        kept.load(PLAN, "n0.g0", SAVED, STATES[3])
    assert raised.value.version == SAVED


def test_another_history_of_the_same_step_is_not_loaded(kept):
    with pytest.raises(CannotRestore, match="no version can be loaded"):
        kept.load(PLAN, "n0.g0", Version(3, 2), STATES[3])


def test_from_a_checkpoint(kept, tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    writer = JobWriter(JOB, root, tmp_path)
    assert writer.hold(SAVED)
    writer.write(SAVED)
    writer.release()
    slices = make_slices(OTHER, OTHER.workers[1])
    found = load_checkpoint(slices, root, 3)
    assert (found.version, found.num_updates) == (SAVED, 3)
    check(slices, STATES[3])
    for arenas in kept.arenas.values():
        arenas.lose()
    again = make_slices(PLAN, "n0.g0")
    load_snapshot(again, SAVED, job=JOB, node="n0", checkpoints=str(root), folder=tmp_path)
    check(again, STATES[3])
