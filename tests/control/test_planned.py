"""Planned changes as the coordinator follows them."""

from holdfast.control.delivery import RECOVERY_MS
from holdfast.control.effects import Fail, Finish
from holdfast.control.facts import (
    NodeDead,
    NodesAbsent,
    PlanWanted,
    StopWanted,
    WorkerExited,
    WorkerStarted,
)
from holdfast.control.journal_entries import Dropped, EnteredByAll, Ordered, Voided, Wanted
from holdfast.control.order import Order
from holdfast.control.report import Member
from holdfast.plan.plan import Plan
from holdfast.plan.text import parse_plan
from support.control_jobs import Job, outcome, small_plan


def entries(job: Job, kind: type) -> list:
    return [entry for entry in job.journal if isinstance(entry, kind)]


def with_change() -> tuple[Job, Order]:
    """A worker is back and may join: order 3."""
    job = Job().begin()
    member = job.member("n0.g0")
    del job.positions["n0.g0"]
    job.take(WorkerExited(member, "SIGKILL"))
    job.tick(RECOVERY_MS)
    change = job.coordinator._state.journal.outstanding
    assert change is not None
    return job, change


def enter(job: Job, change: Order, *names: str) -> None:
    for name in names:
        position = job.positions[name]
        position.enter(change, version=1, outcome=outcome(0, 2))
        job.tell(name)


def test_the_job_starts_when_every_worker_is_there():
    job = Job()
    job.connect("n0")
    assert job.coordinator._state.journal.last is None
    job.connect("n1")
    assert job.last.kind == "start"


def test_the_notice_of_a_start_may_come_after_the_workers_first_word():
    """The agent learns of the process from the fork server, the worker speaks for itself."""
    job = Job()
    job.connect("n0")
    job.take(WorkerStarted(member=job.member("n0.g0"), pid=7))
    job.connect("n1")
    assert job.last.kind == "start"
    assert job.coordinator._state.roster.pids["n0.g0"] == 7


def test_or_with_enough_after_a_while():
    job = Job(start_ms=1000)
    job.connect("n0")
    job.tick(1000)
    assert list(job.last.incarnations) == ["n0.g0"]


def test_a_job_begins_at_once_without_nodes_that_no_host_has_joined_for():
    job = Job()
    job.take(NodesAbsent(("n1",)))
    job.connect("n0")
    assert list(job.last.incarnations) == ["n0.g0"]
    job.connect("n1")  # its host comes later, and joins
    change = job.coordinator._state.journal.outstanding
    assert change is not None
    assert [joiner.name for joiner in change.joiners] == ["n1.g0"]


def test_it_still_waits_for_the_nodes_that_have_a_host():
    job = Job()
    job.take(NodesAbsent(("n1",)))
    assert job.coordinator._state.journal.last is None


def failing_at_every_start(plan: Plan | None = None) -> Job:
    """n0.g0 ends before its first word, as often as it is started."""
    job = Job(plan)
    tell = job.tell
    job.tell = lambda name: None if name == "n0.g0" else tell(name)
    job.connect("n0")
    for incarnation in range(1, job.settings.max_restarts + 2):
        job.take(WorkerExited(Member("n0.g0", incarnation), "failed: out of memory", True))
    return job


def test_a_job_begins_without_a_worker_that_fails_at_every_start():
    job = failing_at_every_start()
    job.connect("n1")
    assert list(job.last.incarnations) == ["n1.g0"]


def test_and_ends_if_it_cannot_begin_without_it():
    job = failing_at_every_start(small_plan(1, 2))
    job.connect("n1")
    (failure,) = [effect for effect in job.effects if isinstance(effect, Fail)]
    assert "n0.g0 cannot be started again; n0.g0 failed: out of memory" in failure.reason


def test_a_worker_started_again_joins():
    job, change = with_change()
    assert (change.number, change.joiners[0].name) == (3, "n0.g0")
    assert job.positions["n1.g0"].pending == 3
    enter(job, change, "n0.g0", "n1.g0")
    assert entries(job, EnteredByAll) == [EnteredByAll(3, 1)]
    assert job.last == change


def test_a_joiner_that_dies_voids_the_change_once_all_have_given_it_up():
    job, _ = with_change()
    position = job.positions["n1.g0"]
    position.base = position.epoch
    position.vote(True)
    joiner = job.member("n0.g0")
    del job.positions["n0.g0"]
    job.take(WorkerExited(joiner, "SIGKILL"))
    assert [entry.number for entry in entries(job, Voided)] == [3]
    assert entries(job, Dropped) == []
    position.agreed(0)
    job.tell("n1.g0")
    assert entries(job, Dropped) == [Dropped(3)]
    assert job.coordinator._state.journal.outstanding.number == 4


def test_a_change_that_was_entered_when_its_joiner_died_needs_a_round():
    job, change = with_change()
    enter(job, change, "n1.g0")
    joiner = job.member("n0.g0")
    del job.positions["n0.g0"]
    job.take(WorkerExited(joiner, "SIGKILL"))
    assert job.last.kind == "recover"
    assert list(job.last.incarnations) == ["n1.g0"]


def test_another_plan_cancels_the_change_under_way():
    job, _ = with_change()
    job.take(PlanWanted(small_plan(2, 1), "better"))
    assert [entry.number for entry in entries(job, Voided)] == [3]


def test_no_change_while_a_worker_was_not_heard_in_the_last_order():
    job = Job(small_plan(3)).begin()
    job.is_held = lambda name: name == "n2.g0"
    member = job.member("n0.g0")
    del job.positions["n0.g0"]
    job.take(WorkerExited(member, "SIGKILL"))
    job.positions["n2.g0"].on_freeze(job.sent(object)[-1].message)
    job.tell("n2.g0")
    assert job.last.kind == "recover"
    assert not [e for e in entries(job, Ordered) if e.order.kind == "change"]


def test_a_spare_takes_the_place_of_a_name_that_cannot_come_back():
    job = Job(spares=("n9.g0",)).begin()
    job.take(NodeDead("n0"))
    del job.positions["n0.g0"]
    (wanted,) = entries(job, Wanted)
    assert parse_plan(wanted.plan).workers == ("n9.g0", "n1.g0")
    assert job.positions["n9.g0"].pending > 0


def test_a_stop_before_the_job_has_begun_ends_it():
    job = Job(first_step=7)
    job.connect("n0")
    job.take(StopWanted("SIGTERM"))
    assert [e.version for e in job.effects if isinstance(e, Finish)] == [7]
    assert job.coordinator.is_over
