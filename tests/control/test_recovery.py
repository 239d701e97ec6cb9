"""Rounds as the coordinator holds them."""

from holdfast.control.effects import Fail
from holdfast.control.facts import NodeLost, StopWanted, WorkerExited, WorkerHung
from holdfast.control.journal_entries import Ended, NumberTaken, Ordered
from holdfast.control.order import Freeze, Order
from support.control_jobs import Job, small_plan


def crash(job: Job, name: str) -> None:
    member = job.member(name)
    del job.positions[name]
    job.take(WorkerExited(member, "SIGKILL"))


def test_a_death_ends_in_an_order_for_those_who_are_left():
    job = Job().begin()
    crash(job, "n0.g0")
    assert (job.last.kind, job.last.number) == ("recover", 2)
    assert list(job.last.incarnations) == ["n1.g0"]
    assert job.positions["n1.g0"].epoch == 2


def test_the_number_is_in_the_journal_before_the_freeze():
    job = Job().begin()
    job.is_held = lambda name: True
    effects = job.take(WorkerHung(job.member("n0.g0")))
    kinds = [getattr(e, "entry", getattr(e, "message", e)) for e in effects]
    number = next(i for i, e in enumerate(kinds) if isinstance(e, NumberTaken))
    freeze = next(i for i, e in enumerate(kinds) if isinstance(e, Freeze))
    assert number < freeze


def test_broken_groups_wait_for_a_death_to_show():
    job = Job(settle_ms=50).begin()
    job.positions["n0.g0"].on_broken("closed")
    job.tell("n0.g0")
    job.tick(49)
    assert job.last.kind == "start"
    job.tick(1)
    assert job.last.kind == "recover"
    assert len(job.last.incarnations) == 2


def test_a_second_death_does_not_hold_the_round_up():
    job = Job(small_plan(3)).begin()
    job.is_held = lambda name: name in ("n1.g0", "n2.g0")
    crash(job, "n0.g0")
    crash(job, "n1.g0")
    assert job.last.kind == "start"
    job.is_held = lambda name: False
    job.connect("n2")
    assert list(job.last.incarnations) == ["n2.g0"]


def test_lost_state_comes_back_from_a_snapshot():
    job = Job().begin()
    job.is_held = lambda name: True
    job.hold(4, "n1")
    crash(job, "n0.g0")
    job.is_held = lambda name: False
    crash(job, "n1.g0")
    assert (job.last.kind, job.last.version, job.last.agreed_in) == ("restore", 4, 1)
    assert job.last.lineage == job.last.number
    assert {job.positions[name].version for name in job.last.incarnations} == {4}


def test_without_one_the_job_fails():
    job = Job().begin().complete()
    job.is_held = lambda name: True
    crash(job, "n0.g0")
    crash(job, "n1.g0")
    (failed,) = [effect for effect in job.effects if isinstance(effect, Fail)]
    assert "no snapshot is whole" in failed.reason
    assert job.coordinator.is_over


def test_nothing_is_rolled_back_while_all_nodes_are_away():
    job = Job(lost_after_ms=100).begin()
    job.hold(4, "n1")
    before = job.last
    for node in ("n0", "n1"):
        job.take(NodeLost(node))
    job.tick(100)
    job.tick(30_000)
    assert job.last == before
    job.connect("n1", arenas=job.arenas("n1", 4))
    assert (job.last.kind, sorted(job.last.incarnations)) == ("recover", ["n1.g0"])


def test_a_start_that_a_worker_missed_begins_again():
    job = Job()
    job.is_held = lambda name: name == "n1.g0"
    job.begin()
    first = job.last
    crash(job, "n0.g0")
    job.is_held = lambda name: False
    job.connect("n1")
    orders = [e.order for e in job.journal if isinstance(e, Ordered)]
    assert first.kind == "start"
    assert orders[1].kind == "start"


def joined_by_one(**options) -> Job:
    """A job that one worker has begun alone, far behind it a second one that joins."""
    job = Job(start_ms=0, **options)
    job.connect("n0")
    job.connect("n1")
    assert list(job.last.incarnations) == ["n0.g0"]
    assert job.positions["n1.g0"].pending
    return job


def test_joiners_at_version_0_do_not_take_the_job_back_past_a_snapshot():
    job = joined_by_one()
    job.hold(4, "n0")
    crash(job, "n0.g0")
    assert (job.last.kind, job.last.version) == ("restore", 4)


def test_joiners_at_version_0_do_not_prove_that_no_step_was_done():
    job = joined_by_one()
    job.complete()
    crash(job, "n0.g0")
    (failed,) = [effect for effect in job.effects if isinstance(effect, Fail)]
    assert "no snapshot is whole" in failed.reason


def test_what_died_before_any_step_was_told_begins_again():
    """The state is what the seed says."""
    job = Job().begin()
    first = job.last
    for name in ("n0.g0", "n1.g0"):
        job.is_held = lambda name: True
        crash(job, name)
    job.is_held = lambda name: False
    job.connect("n0")
    job.connect("n1")
    assert not [effect for effect in job.effects if isinstance(effect, Fail)]
    assert (first.kind, job.last.kind, job.last.at_step) == ("start", "start", 0)
    assert job.last.number > first.number


def test_a_snapshot_of_the_first_step_is_newer_than_the_beginning():
    job = Job(small_plan(2, 2)).begin()
    job.hold(1)
    job.is_held = lambda name: name == "n2.g0"
    crash(job, "n0.g0")
    crash(job, "n2.g0")
    assert (job.last.kind, job.last.version) == ("restore", 1)


def ends(job: Job) -> list[int]:
    """The end is said when the last version is on disk; which it is, is journaled before."""
    found = [entry for entry in job.journal if isinstance(entry, Ended)]
    return [entry.version for entry in found if not entry.is_failure]


def test_a_stop_after_the_death_of_all_workers_ends_at_the_newest_snapshot():
    job = Job().begin()
    job.is_held = lambda name: True
    job.hold(4, "n1")
    places, job.places = job.places, {}
    for name in ("n0.g0", "n1.g0"):
        job.take(NodeLost(name.partition(".")[0]))
        crash(job, name)
    job.places = places
    assert not ends(job)
    job.take(StopWanted("SIGTERM"))
    job.connect("n0")
    job.connect("n1", arenas=job.arenas("n1", 4))
    assert ends(job) == [4]
    assert job.coordinator.is_over


def test_a_stop_right_before_the_death_of_all_workers_ends_at_the_newest_snapshot():
    job = Job().begin()
    job.hold(4, "n1")
    job.is_held = lambda name: True
    job.take(StopWanted("SIGTERM"))
    crash(job, "n0.g0")
    crash(job, "n1.g0")
    assert ends(job) == [4]


def test_a_stop_without_any_snapshot_fails_as_the_loss_does():
    job = Job().begin().complete()
    job.is_held = lambda name: True
    job.take(StopWanted("SIGTERM"))
    crash(job, "n0.g0")
    crash(job, "n1.g0")
    assert not ends(job)
    assert any(isinstance(effect, Fail) for effect in job.effects)


def test_a_stop_while_state_is_lost_does_not_wait_for_workers_that_are_not_started_any_more():
    job = Job(small_plan(2, 2)).begin()
    job.hold(4)
    job.take(StopWanted("SIGTERM"))
    job.is_held = lambda name: name == "n2.g0"
    crash(job, "n0.g0")
    crash(job, "n2.g0")
    assert ends(job) == [4]


def rounds(job: Job) -> list[str]:
    return [entry.reason for entry in job.journal if isinstance(entry, NumberTaken)]


def deaf_to_orders(job: Job) -> None:
    """Freezes arrive; orders do not."""
    deliver = job._deliver
    job._deliver = lambda position, message: (
        isinstance(message, Order) or deliver(position, message)
    )


def test_an_order_that_is_not_entered_in_time_begins_a_new_round():
    job = Job(small_plan(3), enter_ms=1000, answer_ms=10**9).begin()
    deliver = job._deliver
    deaf_to_orders(job)
    crash(job, "n0.g0")
    assert len(rounds(job)) == 1
    job.tick(999)
    assert len(rounds(job)) == 1
    job.tick(1)
    assert "has not entered order" in rounds(job)[1]
    job.tick(1999)
    assert len(rounds(job)) == 2
    job._deliver = deliver
    job.tick(1)
    assert len(rounds(job)) == 3
    assert {job.positions[name].epoch for name in ("n1.g0", "n2.g0")} == {job.last.number}


def test_a_group_that_breaks_while_an_order_is_carried_out_begins_a_new_round():
    job = Job(small_plan(3), settle_ms=10).begin()
    deliver = job._deliver
    deaf_to_orders(job)
    crash(job, "n0.g0")
    job._deliver = deliver
    job.positions["n1.g0"].on_broken("connection closed by n2.g0", ["n2.g0"])
    job.tell("n1.g0")
    job.tick(10)
    assert "n1.g0#1 is broken" in rounds(job)[1]
    assert {job.positions[name].epoch for name in ("n1.g0", "n2.g0")} == {job.last.number}


def test_a_standstill_that_no_worker_can_be_blamed_for_is_a_round_which_finds_it():
    job = Job(answer_ms=300).begin()
    job.is_held = lambda name: name == "n0.g0"
    job.coordinator._state.standstill = "all are in the agreement"
    job.tick(1)
    assert any("no member gets on: all are in the agreement" in line for line in job.said)
    assert job.coordinator._state.standstill == ""
    job.tick(300)
    assert any("n0.g0#1 is out: it does not answer" in line for line in job.said)
    assert job.last.incarnations == {"n1.g0": 1}


def test_a_standstill_is_over_when_a_worker_moves():
    state = Job().begin().coordinator._state
    state.standstill = "all are in the agreement"
    state.clear([])
    assert state.standstill
    state.clear(["n1.g0"])
    assert state.standstill == ""
