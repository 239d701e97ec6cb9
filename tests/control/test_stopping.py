"""A stop comes at a step boundary, or with the newest version, within the grace time."""

from holdfast.control.effects import Finish, Happened, ToNode
from holdfast.control.facts import CheckpointWanted, StopWanted
from holdfast.control.job_events import StepsUnrecorded
from holdfast.control.journal_entries import StopAsked
from holdfast.control.settings import SnapshotSettings
from holdfast.control.snapshots.messages import Persist, Persisted
from holdfast.control.stopping import LEAVE_MS, boundary_deadline_ms, is_overdue
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.layout import Version
from support.control_jobs import Job

GRACE_MS = 10_000
ON_DEMAND = SnapshotSettings(options=SnapshotOptions(job="test"), persists=False)


def stopping(**options) -> Job:
    job = Job(grace_ms=GRACE_MS, snapshots=ON_DEMAND, **options).begin()
    job.take(StopWanted("SIGTERM"))
    return job


def persists(job: Job) -> list[Persist]:
    messages = [effect.message for effect in job.effects if isinstance(effect, ToNode)]
    return [message for message in messages if isinstance(message, Persist)]


def ends(job: Job) -> list[Finish]:
    return [effect for effect in job.effects if isinstance(effect, Finish)]


def test_half_of_the_time_is_for_a_step_boundary():
    job = stopping()
    state = job.coordinator._state
    assert boundary_deadline_ms(state) == GRACE_MS // 2
    assert job.coordinator.next_deadline_ms(GRACE_MS // 2 - 50) <= GRACE_MS // 2
    job.hold(3)
    job.tick(GRACE_MS // 2 - 1)
    assert not is_overdue(state)
    assert not job.coordinator.is_over
    job.tick(1)
    assert is_overdue(state)
    assert job.coordinator.is_over


def test_asking_again_gives_no_more_time():
    job = stopping()
    job.hold(3)
    job.tick(GRACE_MS // 4)
    job.take(StopWanted("SIGINT"))
    assert [e.reason for e in job.journal if isinstance(e, StopAsked)] == ["SIGTERM"]
    assert boundary_deadline_ms(job.coordinator._state) == GRACE_MS // 2


def test_the_newest_version_is_written_before_the_end_is_said():
    """Also where no checkpoints are written otherwise."""
    job = stopping()
    job.hold(3)
    job.tick(GRACE_MS // 2)
    assert [message.version for message in persists(job)] == [Version(3, 1)]
    assert ends(job) == []
    job.take(Persisted(version=Version(3, 1), reason="", seconds=0.1, path="p"))
    assert [(end.version, end.outcome) for end in ends(job)] == [(3, "stopped")]


def test_steps_of_that_version_that_were_not_told_are_named():
    """The coordinator is cut off while workers go on: a snapshot says how far they came."""
    job = stopping()
    job.hold(3)
    job.tick(GRACE_MS // 2)
    told = [effect.event for effect in job.effects if isinstance(effect, Happened)]
    assert StepsUnrecorded(0, 2) in told


def test_a_write_that_takes_too_long_is_not_waited_for():
    job = stopping()
    job.hold(3)
    job.tick(GRACE_MS // 2)
    job.tick(GRACE_MS // 2 - LEAVE_MS - 1)
    assert ends(job) == []
    job.tick(1)
    assert [end.version for end in ends(job)] == [3]


def test_without_any_version_a_boundary_is_waited_for():
    job = stopping()
    job.tick(GRACE_MS)
    assert not job.coordinator.is_over


def test_a_checkpoint_that_is_asked_for_is_written_once():
    job = Job(snapshots=ON_DEMAND).begin()
    job.take(CheckpointWanted("SIGUSR1"))
    assert persists(job) == []  # there is no version yet
    job.hold(3)
    job.tick(1000)
    assert persists(job) == [Persist(version=Version(3, 1), demand="SIGUSR1")]
    job.take(Persisted(version=Version(3, 1), reason="", seconds=0.1, path="p"))
    job.take(CheckpointWanted("SIGUSR1"))
    assert len(persists(job)) == 1
