"""A lost worker comes back, unit by unit, and ends with the bits of its peers."""

import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from holdfast.engine import feed
from holdfast.plan.build import regular_plan
from support.sample import some
from support.threaded_job import ANY_STEP, Fault, ThreadedJob, assert_survives
from support.training import Task

TASK = Task(num_steps=400)
"""At most: long enough for workers to come back whose threads are late."""
REPLICAS = regular_plan(TASK.units, replicas=3, micro_batches=4)


def survive(plan, *faults, **more):
    """Until all are back."""
    return assert_survives(ThreadedJob(TASK, plan, faults, enough=ThreadedJob.are_back, **more))


def seated(job):
    """Who had a role at the end, with incarnation."""
    return {
        str(t.position.member) for t in job.final_trainers if t.position.version == job.num_done
    }


def test_a_replica_comes_back():
    job = survive(REPLICAS, Fault("n0.g2", 2, "forward"))
    assert "n0.g2#2" in seated(job)
    joined = [report for member, report in job.changes if str(member) == "n0.g2#2"]
    assert joined[0].bytes_received > 0


def test_a_stage_comes_back_while_its_replica_works_on():
    plan = regular_plan(TASK.units, replicas=2, stages=2, micro_batches=4)
    job = survive(plan, Fault("n0.g3", 2, "backward"))
    assert seated(job) == {"n0.g0#1", "n0.g1#1", "n0.g2#1", "n0.g3#2"}


def test_a_tensor_rank_comes_back_with_the_peer_that_had_to_wait():
    plan = regular_plan(TASK.units, replicas=2, tensor=2, micro_batches=4)
    job = survive(plan, Fault("n0.g3", 2, "backward"))
    assert seated(job) == {"n0.g0#1", "n0.g1#1", "n0.g2#1", "n0.g3#2"}


def test_a_joiner_that_dies_is_replaced():
    """In the first step that it takes part in."""
    job = survive(
        REPLICAS, Fault("n0.g2", 2, "forward"), Fault("n0.g2", ANY_STEP, "forward", incarnation=2)
    )
    assert seated(job) == {"n0.g0#1", "n0.g1#1", "n0.g2#3"}


def test_a_source_that_dies_is_replaced():
    job = survive(REPLICAS, Fault("n0.g2", 2, "forward"), Fault("n0.g0", 4, "forward"))
    assert {"n0.g0#2", "n0.g2#2"} <= seated(job)


def test_a_slow_transfer_stops_no_worker(monkeypatch):
    """Every unit is held back until the others have done a step more; the joiner still comes in
    with the right bits.
    """
    job = ThreadedJob(
        TASK,
        REPLICAS,
        [Fault("n0.g2", 2, "forward")],
        enough=ThreadedJob.are_back,
        config={"feed_delay_ms": 1},
    )
    held_back = []

    def hold_back(seconds):
        held_back.append(threading.current_thread())
        job.await_step()

    monkeypatch.setattr(feed, "time", SimpleNamespace(sleep=hold_back))
    assert_survives(job)
    assert seated(job) == {"n0.g0#1", "n0.g1#1", "n0.g2#2"}
    assert len(held_back) == len(TASK.units)
    ((_, joined),) = [found for found in job.changes if str(found[0]) == "n0.g2#2"]
    num_meanwhile = max(Counter(held_back).values())
    assert joined.step > 2 + num_meanwhile, "steps after the one that was completed"


@pytest.mark.parametrize("number", some(range(1, 19), (9,)))
def test_the_coordinator_is_lost_at_every_point_of_its_journal(number):
    """A worker dies, a round is held, it comes back: the coordinator crashes after the entry of
    this number, with everything that was to be sent behind it.
    """
    lost = Fault("n0.g2", 2, "forward", incarnation=0)
    job = survive(REPLICAS, lost, crash_at=number)
    assert job.num_crashes == (len(job.journal) >= number)
