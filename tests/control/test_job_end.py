"""When the job is over, and when it is said."""

from holdfast.control.effects import Fail, Finish, Happened, ToNode
from holdfast.control.facts import NodeDead, StepReported, StopWanted, WorkerExited
from holdfast.control.job_end import REPORTS_MS
from holdfast.control.job_events import StepsUnrecorded
from holdfast.control.settings import SnapshotSettings
from holdfast.control.snapshots.messages import NodeHolds, Persist, Persisted
from holdfast.control.worker_reports import StepReport
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.layout import Version
from support.control_jobs import Job


def test_the_end_waits_for_the_reports_of_the_last_steps():
    """An agent that comes back says that its workers are done, and then what they reported."""
    job = Job().begin()
    job.take(StopWanted())
    for name, position in job.positions.items():
        position.version = 1
        position.done()
        job.tell(name)
    assert not [e for e in job.effects if isinstance(e, Finish)]
    for name in ("n0.g0", "n1.g0"):
        report = StepReport(0, 1, 0.5, 2.0, 1.0, 64, 1e-3, True)
        job.take(StepReported(job.member(name), report))
    assert [e.version for e in job.effects if isinstance(e, Finish)] == [1]


def test_reports_that_never_come_are_not_waited_for_long():
    job = Job().begin()
    job.take(StopWanted())
    for name, position in job.positions.items():
        position.version = 1
        position.done()
        job.tell(name)
    job.tick(REPORTS_MS)
    assert [e.version for e in job.effects if isinstance(e, Finish)] == [1]
    told = [e.event for e in job.effects if isinstance(e, Happened)]
    assert StepsUnrecorded(0, 0) in told


def asked_to_write(job: Job) -> list[str]:
    effects = [e for e in job.effects if isinstance(e, ToNode)]
    return [e.node for e in effects if isinstance(e.message, Persist) and e.message.demand]


def test_the_last_checkpoint_is_asked_for_again_where_its_writer_is_lost():
    options = SnapshotOptions(job="test")
    job = Job(snapshots=SnapshotSettings(options=options, persists=True)).begin()
    for node in ("n0", "n1"):
        job.take(NodeHolds(node=node, arenas=job.arenas(node, 1)))
    job.take(StopWanted())
    for name, position in job.positions.items():
        position.version = 1
        position.done()
        job.tell(name)
    job.tick(REPORTS_MS)
    assert asked_to_write(job) == ["n0"]
    assert not [e for e in job.effects if isinstance(e, Finish)]
    job.take(NodeDead("n0"))
    assert asked_to_write(job) == ["n0", "n1"]
    job.connect("n1")
    assert asked_to_write(job) == ["n0", "n1", "n1"], "it may not know"
    job.take(Persisted(version=Version(1, 1), reason="", seconds=0.1, path="p"))
    assert [e.version for e in job.effects if isinstance(e, Finish)] == [1]


def test_a_successor_says_the_same_of_a_failure():
    """Whether what is in memory is of use, and whose log says more."""
    job = Job().begin().complete()
    for name in ("n0.g0", "n1.g0"):
        job.take(WorkerExited(job.member(name), "SIGKILL"))
    failed = [e for e in job.effects if isinstance(e, Fail)]
    assert [e.is_state_lost for e in failed] == [True]
    job.restart()
    job.tick(1)
    again = [e for e in job.effects if isinstance(e, Fail)]
    assert again == failed * 2
