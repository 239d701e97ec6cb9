"""Steps that are not finite: skipped, the end, or back to a good version."""

import pytest

from holdfast.control.effects import Fail
from holdfast.control.facts import StepReported
from holdfast.control.non_finite import GoBack, LeaveOut, NonFiniteSteps, StopAtStep
from holdfast.control.worker_reports import StepReport
from support.control_jobs import Job

NAN = float("nan")


def report(step, loss=1.0, tokens=2, epoch=1):
    return StepReport(step, epoch, 0.1, loss, 1.0, tokens, 1e-3, loss == loss and tokens > 0)


def steps(policy="go_back", tries=2, oldest=0):
    return NonFiniteSteps(policy, tries, lambda before: before > oldest)


def test_the_simple_policies():
    assert steps("skip").take(report(3, NAN)) is None
    answer = steps("stop").take(report(3, NAN))
    assert answer == StopAtStep(
        "step 3: loss nan or gradient norm 1 is not finite (recovery.non_finite = 'stop')"
    )
    for policy in ("stop", "go_back"):
        assert steps(policy).take(report(3)) is None
        assert steps(policy).take(report(3, tokens=0)) is None  # no target counts


def test_a_passing_fault():
    found = steps()
    answer = found.take(report(5, NAN))
    assert isinstance(answer, GoBack)
    assert answer.before == 5
    found.went_back(4)
    assert found.take(report(4)) is None
    assert found.take(report(5)) is None
    assert found.take(report(9, NAN)).before == 9  # the count begins again


def test_a_batch_that_cannot_be_computed():
    found = steps(tries=1)
    for bad in (5, 8, 20):  # each with good steps between
        assert isinstance(found.take(report(bad, NAN)), GoBack)
        found.went_back(bad - 1)
        assert found.take(report(bad - 1)) is None
        answer = found.take(report(bad, NAN))
        assert isinstance(answer, LeaveOut)
        assert "its batch is left out" in answer.reason
        assert found.take(report(bad + 1)) is None


def test_state_that_was_bad_for_longer():
    found = steps(tries=2)
    assert found.take(report(5, NAN)).before == 5
    found.went_back(4)
    assert isinstance(found.take(report(5, NAN)), LeaveOut)
    assert found.take(report(6, NAN)).before == 4  # an older one
    found.went_back(2)
    assert isinstance(found.take(report(5, NAN)), LeaveOut)
    assert isinstance(found.take(report(6, NAN)), LeaveOut)
    answer = found.take(report(7, NAN))
    assert isinstance(answer, StopAtStep)
    assert "going back 2 times did not help" in answer.reason


def test_nothing_to_go_back_to():
    found = steps(tries=1, oldest=9)
    assert "no good version" in found.take(report(5, NAN)).reason
    assert isinstance(found.take(report(6, NAN)), StopAtStep)


def take_step(job, number, loss=1.0):
    epoch = job.last.number
    for name in job.plan.workers:
        job.take(StepReported(job.member(name), report(number, loss, epoch=epoch)))


@pytest.mark.parametrize("policy", ["skip", "stop", "go_back"])
def test_a_job_follows_its_policy(policy):
    job = Job(non_finite=policy).begin()
    for number in range(3):
        take_step(job, number)
    job.hold(2)
    take_step(job, 3, NAN)
    failed = [effect.reason for effect in job.effects if isinstance(effect, Fail)]
    assert bool(failed) == (policy == "stop")
    if policy != "go_back":
        assert job.last.kind == "start"
        return
    assert (job.last.kind, job.last.version) == ("restore", 2)
    assert "back to version" in job.last.reason
    assert "step 3: loss nan" in job.last.reason
