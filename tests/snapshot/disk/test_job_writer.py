"""Checkpoints of whole versions, written beside the training."""

import threading

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.snapshot.disk.checkpoints import choose_checkpoint, list_checkpoints
from holdfast.snapshot.disk.dcp import Checkpoint
from holdfast.snapshot.disk.job_writer import JobPersister, JobWriter
from holdfast.snapshot.disk.persister import Due, Persister
from holdfast.snapshot.layout import Version
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.memory.job_memory import arena_files
from support.kept_state import JOB, KeptWorkers
from support.random_plans import make_units
from support.snapshots import check_wants, random_state, wants_for

PLAN = regular_plan(make_units(2), replicas=2, micro_batches=2, devices_per_node=1)
STATES = {step: random_state(PLAN, seed=step) for step in range(1, 5)}
LONG_S = 30.0


@pytest.fixture
def kept(tmp_path):
    kept = KeptWorkers(PLAN, tmp_path)
    kept.enter()
    kept.train(STATES)
    yield kept
    kept.close()


@pytest.fixture
def attempts():
    return []


@pytest.fixture
def persisting(kept, tmp_path, attempts):
    done = threading.Event()
    root = tmp_path / "checkpoints"

    def report(attempt):
        attempts.append(attempt)
        done.set()

    found = JobPersister(JOB, root, Due(every_steps=3), report, folder=tmp_path)
    found.done, found.root = done, root
    yield found
    found.close()


def test_what_is_due_is_written(persisting, attempts):
    persisting.offer(Version(2, 1))
    persisting.offer(Version(3, 1))
    assert persisting.done.wait(LONG_S)
    assert [(a.version, a.is_done) for a in attempts] == [(Version(3, 1), True)]
    assert [found.version for found in list_checkpoints(persisting.root)] == [Version(3, 1)]


def test_what_is_demanded_is_written_at_once(persisting, attempts):
    persisting.offer(Version(2, 1), "the job stops")
    assert persisting.done.wait(LONG_S)
    assert attempts[0].reason == "the job stops"


def test_a_held_version_is_not_overwritten(kept, tmp_path):
    writer = JobWriter(JOB, tmp_path, tmp_path)
    assert writer.hold(Version(2, 1))
    kept.train(dict.fromkeys(range(5, 12), STATES[4]))
    assert writer.write(Version(2, 1)).name == "step-2"
    writer.release()


def test_a_version_that_is_held_again_is_held_all_the_while(kept, tmp_path, monkeypatch):
    writer = JobWriter(JOB, tmp_path, tmp_path)
    assert writer.hold(Version(2, 1))
    monkeypatch.setattr(Arena, "unpin", lambda arena: pytest.fail(f"{arena.name} was let go"))
    assert writer.hold(Version(2, 1))


def test_a_version_that_is_gone_is_not_held(kept, tmp_path):
    writer = JobWriter(JOB, tmp_path, tmp_path)
    assert writer.hold(Version(3, 1))
    writer.release()
    for path in arena_files(JOB, tmp_path):
        arena = Arena.open(path)
        arena.roll_back(Version(2, 1))
        arena.close()
    assert not writer.hold(Version(3, 1))
    writer.release()


def test_a_version_that_is_gone(kept, tmp_path):
    with pytest.raises(HoldfastError, match="not whole in memory any more"):
        JobWriter(JOB, tmp_path, tmp_path).write(Version(1, 7))


@pytest.mark.slow
def test_from_memory_to_disk_and_back_while_training_goes_on(kept, tmp_path):
    root, attempts = tmp_path / "checkpoints", []
    writer = JobWriter(JOB, root, tmp_path)
    persister = Persister(writer, Due(every_steps=2), attempts.append, keep_latest_k=2, retry_s=0.0)
    for step in range(5, 13):
        kept.train({step: random_state(PLAN, seed=step)})
        persister.offer(Version(step - 1, 1))
        if step % 4 == 0:  # else the write runs beside the next steps
            assert persister.wait_idle(LONG_S)
    persister.stop()
    assert attempts
    assert all(attempt.is_done for attempt in attempts), attempts
    assert len(list_checkpoints(root)) <= 2
    checkpoint = Checkpoint(choose_checkpoint(root))
    step = checkpoint.version.step
    assert checkpoint.values() == {"step": step, "next_step": step}
    wants = wants_for(PLAN, "n0.g0")
    checkpoint.read(wants)
    check_wants(wants, random_state(PLAN, seed=step))
    for path in arena_files(JOB, tmp_path):
        arena = Arena.open(path)
        assert not any(arena._is_pinned(number) for number in range(arena.layout.num_slots))
        arena.close()
