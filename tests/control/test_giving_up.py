"""Jobs that are given up, by the coordinator."""

import pytest

from holdfast.control.effects import Fail, Happened
from holdfast.control.ending import BLAME_MS
from holdfast.control.facts import Tick, WorkerExited, WorkerFailing, WorkerHung
from holdfast.control.giving_up import blame_all
from holdfast.control.job_events import WorkerBlamed
from support.control_jobs import Job


def failures(job: Job) -> list[Fail]:
    return [effect for effect in job.effects if isinstance(effect, Fail)]


def test_a_job_without_any_sign_of_progress_is_given_up():
    job = Job(patience_ms=1000).begin()
    job.tick(1000)
    assert not failures(job)
    job.tick(1)
    assert "no worker has made progress" in failures(job)[0].reason
    assert job.coordinator.is_over


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
