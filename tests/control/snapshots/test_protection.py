"""Every change of what a job is protected against is told once."""

from holdfast.control.effects import Finish, Happened
from holdfast.control.facts import CheckpointsFound, StopWanted
from holdfast.control.job_end import REPORTS_MS
from holdfast.control.job_events import ProtectionFound
from holdfast.control.settings import SnapshotSettings
from holdfast.control.snapshots.protection import FIRST_MS, LASTS_MS, ProtectionWatch
from holdfast.snapshot.layout import Version
from holdfast.snapshot.protects import JobProtection
from support.control_jobs import Job, small_plan


def made(**means):
    return JobProtection(tuple(means.items()))


NOTHING = made(worker="", node="")
WORKER = made(worker="holders", node="")
BOTH = made(worker="holders", node="snapshot")


def look(watch, protection, now_ms, is_waiting=False):
    return watch.look(protection, now_ms, is_waiting=is_waiting)


def test_the_first_waits_for_the_first_version():
    watch = ProtectionWatch()
    assert look(watch, WORKER, 0, is_waiting=True) is None
    assert watch.told is None
    assert look(watch, BOTH, 100) == BOTH
    assert look(watch, BOTH, 200) is None


def test_it_does_not_wait_for_ever():
    watch = ProtectionWatch()
    assert look(watch, NOTHING, 0, is_waiting=True) is None
    assert look(watch, NOTHING, FIRST_MS - 1, is_waiting=True) is None
    assert look(watch, NOTHING, FIRST_MS, is_waiting=True) == NOTHING


def test_what_is_better_is_told_at_once():
    watch = ProtectionWatch()
    assert look(watch, NOTHING, 0) == NOTHING
    assert look(watch, WORKER, 1) == WORKER
    assert look(watch, BOTH, 2) == BOTH


def test_what_is_worse_is_told_when_it_lasts():
    watch = ProtectionWatch()
    look(watch, BOTH, 0)
    assert look(watch, WORKER, 10) is None
    assert look(watch, BOTH, 10 + LASTS_MS - 1) is None  # it was only between two plans
    assert look(watch, WORKER, 2000) is None
    assert look(watch, WORKER, 2000 + LASTS_MS) == WORKER
    assert watch.told == WORKER


def test_other_means_to_the_same_end_are_no_news():
    watch = ProtectionWatch()
    look(watch, BOTH, 0)
    assert look(watch, made(worker="snapshot", node="snapshot"), 1) is None
    assert watch.told == made(worker="snapshot", node="snapshot")


def told(job):
    events = [effect.event for effect in job.effects if isinstance(effect, Happened)]
    return [event.protection for event in events if isinstance(event, ProtectionFound)]


def test_a_job_tells_what_it_is_protected_against():
    job = Job(small_plan(1, 2)).begin()  # two stages, each on a node of its own
    job.tick(200)
    assert told(job) == []
    job.hold(3)
    job.tick(200)
    (first,) = told(job)
    assert first.against == ("any one worker", "all workers")
    assert first.not_against == ("any one node", "all nodes")
    assert job.coordinator.view.protection == first
    for version in (4, 5, 6):
        job.hold(version)
        job.tick(200)
    assert told(job) == [first]
    job.take(CheckpointsFound({Version(3, 1): "step-3"}))
    job.tick(200)
    assert told(job)[1:] == [job.coordinator.view.protection]
    assert job.coordinator.view.protection.not_against == ()
    job.take(CheckpointsFound({}))
    job.tick(200)
    assert len(told(job)) == 2
    job.tick(LASTS_MS)
    assert told(job)[2] == first


def test_replicas_alone_protect_against_the_loss_of_one():
    job = Job(snapshots=SnapshotSettings()).begin()
    job.tick(200)
    assert told(job)[0].against == ("any one worker", "any one node")


def test_a_job_that_ends_soon_tells_it_before_its_end():
    job = Job(small_plan(1, 2)).begin()
    job.take(StopWanted())
    for name, position in job.positions.items():
        position.version = 1
        position.done()
        job.tell(name)
    job.tick(REPORTS_MS)
    kinds = [type(effect) for effect in job.effects]
    assert len(told(job)) == 1
    assert kinds.index(Finish) > max(n for n, kind in enumerate(kinds) if kind is Happened)
