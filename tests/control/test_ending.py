"""How jobs end: as plain values, and by the coordinator."""

from holdfast.control.effects import Fail, Finish
from holdfast.control.ending import BLAME_MS, Failure, GivingUp, outcome_at, root_cause, said
from holdfast.control.facts import StopWanted, WorkerExited
from holdfast.control.journal_entries import StopAsked
from support.control_jobs import Job, small_plan

BROKEN = Failure("n0.g0", "failed: a group broke", is_consequence=True)
DEAD = Failure("n0.g1", "was killed", is_consequence=False)


def test_the_cause_is_the_first_that_no_other_explains():
    other = said("n0.g2", "a group broke", is_consequence=True)
    late = said("n0.g3", "ValueError: no")
    assert root_cause([BROKEN, other, DEAD, late]) == DEAD
    assert root_cause([BROKEN, other]) == BROKEN
    assert root_cause([late]) == Failure("n0.g3", "failed: ValueError: no", False)


def test_a_death_is_clear_at_once():
    giving_up = GivingUp(is_strict=True, patience_ms=100, now_ms=0)
    assert giving_up.cause(0) is None
    giving_up.failed(BROKEN, 0)
    assert giving_up.cause(10) is None
    giving_up.failed(DEAD, 20)
    assert giving_up.cause(20) == DEAD


def test_a_cause_is_not_looked_for_for_ever():
    giving_up = GivingUp(is_strict=True, patience_ms=100, now_ms=0)
    giving_up.failed(BROKEN, 5)
    assert giving_up.cause(5 + BLAME_MS) is None
    assert giving_up.cause(6 + BLAME_MS) == BROKEN
    assert 6 + BLAME_MS in giving_up.deadlines_ms()


def test_where_failures_are_recovered_from_they_end_nothing():
    giving_up = GivingUp(is_strict=False, patience_ms=100, now_ms=0)
    giving_up.failed(DEAD, 0)
    assert giving_up.cause(10**6) is None


def test_patience_ends():
    giving_up = GivingUp(is_strict=False, patience_ms=100, now_ms=0)
    assert not giving_up.is_stuck(100)
    giving_up.moved(90)
    assert not giving_up.is_stuck(190)
    assert giving_up.is_stuck(191)
    assert giving_up.deadlines_ms() == [191]


def test_endless_patience():
    assert not GivingUp(is_strict=False, patience_ms=0, now_ms=0).is_stuck(10**12)


def test_a_job_that_ends_before_its_last_step_was_stopped():
    assert outcome_at(4, 4, None) == ("finished", "all 4 steps are done")
    assert outcome_at(3, 4, None) == ("stopped", "asked for, at a step boundary")
    assert outcome_at(3, 4, StopAsked("SIGTERM")) == ("stopped", "SIGTERM, at a step boundary")


def failures(job: Job) -> list[Fail]:
    return [effect for effect in job.effects if isinstance(effect, Fail)]


def test_a_failure_comes_with_the_last_words():
    job = Job(small_plan(1, 1)).begin()
    job.is_held = lambda name: True
    job.positions["n0.g0"].version = 3
    member = job.member("n0.g0")
    del job.positions["n0.g0"]
    job.take(WorkerExited(member, "failed: out of memory", has_said_why=True))
    (failed,) = failures(job)
    assert failed.reason.endswith("; n0.g0 failed: out of memory")


def test_the_end_says_outcome_and_reason():
    job = Job(num_steps=4).begin()
    job.take(StopWanted("SIGTERM"))
    for name, position in job.positions.items():
        position.done()
        job.tell(name)
    (end,) = [effect for effect in job.effects if isinstance(effect, Finish)]
    assert (end.version, end.outcome, end.reason) == (0, "stopped", "SIGTERM, at a step boundary")
