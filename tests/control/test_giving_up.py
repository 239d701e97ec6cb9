"""Jobs that are given up, by the coordinator."""

import pytest

from holdfast.control.effects import Fail, Happened
from holdfast.control.ending import BLAME_MS
from holdfast.control.facts import (
    Beat,
    NodeDead,
    NodeLost,
    ProgressPlace,
    Tick,
    WorkerExited,
    WorkerFailing,
    WorkerHung,
)
from holdfast.control.giving_up import blame_all
from holdfast.control.job_events import WorkerBlamed
from holdfast.control.journal_entries import Fenced
from support.control_jobs import Job, small_plan

PATIENCE_MS = 130_000
LONG_MS = 2 * PATIENCE_MS


def failures(job: Job) -> list[Fail]:
    return [effect for effect in job.effects if isinstance(effect, Fail)]


def test_a_job_without_any_sign_of_progress_is_given_up():
    job = Job(patience_ms=1000).begin()
    job.tick(1000)
    assert not failures(job)
    job.tick(1)
    assert "no worker has made progress" in failures(job)[0].reason
    assert job.coordinator.is_over


@pytest.mark.parametrize("first", [Tick(), Beat(node="n0", sent_ms=0)])
def test_a_pause_of_the_coordinator_does_not_end_the_job(first):
    job = Job(patience_ms=PATIENCE_MS).begin()
    for _ in range(3):
        job.pause(LONG_MS, first)
    assert not failures(job)
    job.pass_time(PATIENCE_MS - 2000)
    assert not failures(job)
    job.pass_time(2500)
    assert failures(job)


def test_beats_of_workers_that_move_are_progress():
    job = Job(patience_ms=PATIENCE_MS).begin()
    for action in range(5):
        place = ProgressPlace(0, action, 0, 0)
        job.take(Beat(node="n0", sent_ms=job.now_ms, places={"n0.g0": place}))
        job.pass_time(PATIENCE_MS - 1000)
    assert not failures(job)
    job.take(Beat(node="n0", sent_ms=job.now_ms, places={"n0.g0": place}))  # it stays there
    job.pass_time(1500)
    assert failures(job)


def test_a_coordinator_that_is_cut_off_from_all_nodes_waits():
    job = Job(patience_ms=PATIENCE_MS, lost_after_ms=LONG_MS).begin()
    for node in job.places:
        job.take(NodeLost(node, "no route"))
    job.pass_time(LONG_MS - 1000)
    assert not job.coordinator._state.spared
    assert not failures(job)
    job.begin()
    job.pass_time(PATIENCE_MS)
    assert not failures(job)


def test_a_successor_waits_for_the_agents_of_the_one_before():
    """The only worker is out, so it waits for no member; that there was an order says enough."""
    job = Job(small_plan(1), patience_ms=PATIENCE_MS).begin()
    job.take(WorkerExited(job.member("n0.g0"), "was killed"))
    (is_out,) = (number for number, e in enumerate(job.journal) if isinstance(e, Fenced))
    del job.journal[is_out + 1 :]  # the coordinator ended there
    job.restart()
    job.pass_time(LONG_MS)
    assert not failures(job)
    job.connect("n0")
    job.pass_time(PATIENCE_MS - 1000)
    assert not failures(job)


def test_agents_that_never_come_are_not_waited_for():
    job = Job(patience_ms=PATIENCE_MS)
    job.pass_time(PATIENCE_MS + 1000)
    assert failures(job)


def test_the_last_holder_is_waited_for_as_long_as_it_hangs():
    job = Job(small_plan(1, 2), patience_ms=PATIENCE_MS).begin()
    job.take(WorkerHung(job.member("n1.g0"), "it makes no progress"))
    job.pass_time(LONG_MS)
    assert job.coordinator._state.spared
    assert not failures(job)
    job.tell("n1.g0")
    job.pass_time(PATIENCE_MS)
    assert not failures(job)
    job.pass_time(1000)
    assert failures(job)


def test_a_rollback_that_waits_for_a_node_is_waited_for():
    job = Job(small_plan(1, 2), patience_ms=PATIENCE_MS).begin()
    del job.positions["n1.g0"]
    job.take(NodeDead("n1", "its end was seen", will_return=True))
    job.pass_time(LONG_MS)
    assert job.coordinator._state.round is not None
    assert not failures(job)
    job.take(NodeDead("n1", "it does not come back"))
    assert "cannot be started again" in failures(job)[0].reason


def test_a_round_that_waits_for_a_worker_that_is_there_is_not():
    job = Job(patience_ms=PATIENCE_MS, answer_ms=LONG_MS).begin()
    job.is_held = lambda name: True
    job.positions["n0.g0"].on_broken("no route")
    job.tell("n0.g0")
    job.pass_time(PATIENCE_MS)
    assert job.coordinator._state.round is not None
    assert not failures(job)
    job.pass_time(1000)
    assert failures(job)


@pytest.mark.parametrize(
    "make_fact",
    [
        lambda member: WorkerExited(member, "was killed"),
        lambda member: WorkerHung(member, "was killed"),
    ],
)
def test_where_a_failed_worker_ends_the_job_it_is_named(make_fact):
    job = Job(ends_with_failure=True).begin()
    job.take(make_fact(job.member("n0.g0")))
    (failed,) = failures(job)
    (blamed,) = [e.event for e in job.effects if isinstance(e, Happened)][-1:]
    assert isinstance(blamed, WorkerBlamed)
    assert (blamed.worker, blamed.role, failed.worker) == ("n0.g0", "r0.s0", "n0.g0")
    assert failed.reason.startswith("worker n0.g0 (r0.s0) ")
    assert "was killed, after 0 steps" in failed.reason


def test_a_consequence_waits_for_its_cause():
    job = Job(ends_with_failure=True).begin()
    job.take(WorkerFailing(job.member("n0.g0"), "a group broke", is_consequence=True))
    job.tick(BLAME_MS)
    assert not failures(job)
    job.take(Tick())
    job.tick(1)
    assert failures(job)[0].worker == "n0.g0"


def test_each_failure_is_blamed_once():
    job = Job(ends_with_failure=True).begin()
    state, giving_up = job.coordinator._state, job.coordinator._giving_up
    state.gone[job.member("n0.g0")] = "was killed"
    blame_all(state, giving_up)
    assert (state.gone, giving_up.cause(0).worker) == ({}, "n0.g0")
