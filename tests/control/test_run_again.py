"""The same job started again with its journal: what it goes on from, and what it forgets."""

import msgspec
import pytest

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Finish, Happened, Start
from holdfast.control.facts import CheckpointsFound, EpochReported, NodeConnected, StopWanted
from holdfast.control.job_events import AllReady, EpochEntered
from holdfast.control.journal_entries import Ended, Fenced, RunBegun, StopAsked, Wanted
from holdfast.control.worker_reports import Planned, RestoreReport
from holdfast.plan.text import parse_plan
from holdfast.snapshot.layout import Version
from support.control_jobs import Job, small_plan

EPOCH = 1


def again(job: Job, **settings: object) -> Job:
    """All processes are gone; a new run begins with what is journaled."""
    run = job.settings.run + 1
    job.settings = msgspec.structs.replace(job.settings, run=run, **settings)
    job.positions.clear()
    job.effects.clear()
    job.coordinator = Coordinator(job.settings, list(job.journal))
    return job


def connect_all(job: Job, version: int | None = None, epoch: int = EPOCH, without: str = "") -> Job:
    for node in job.places:
        held = version is not None and node != without
        arenas = job.arenas(node, version, epoch) if held else ()
        job.take(
            NodeConnected(node=node, agent="a2", places=tuple(job.places[node]), arenas=arenas)
        )
    return job


def test_from_memory_with_new_processes_and_higher_numbers():
    job = connect_all(again(Job().begin()), version=7)
    order = job.last
    assert (order.kind, order.version, order.agreed_in) == ("restore", 7, EPOCH)
    assert order.number > EPOCH
    assert set(order.incarnations.values()) == {2}
    assert order.reason == "memory still holds it whole"
    assert [entry for entry in job.journal if isinstance(entry, Fenced)] == []
    assert [e.run for e in job.journal if isinstance(e, RunBegun)] == [2]


def test_nothing_is_said_of_the_workers_before_and_all_are_ready_once():
    job = connect_all(again(Job().begin()), version=7)
    assert len([e for e in job.effects if isinstance(e, Start)]) == len(job.plan.workers)
    ready = [e for e in job.effects if isinstance(e, Happened) and isinstance(e.event, AllReady)]
    assert len(ready) == 1


def test_how_it_went_on_is_told_when_all_have_loaded():
    job = connect_all(again(Job().begin()), version=7)
    for name in job.plan.workers:
        report = RestoreReport(
            step=7, epoch=job.last.number, stall_s=0.0, load_s=0.1, bytes_by_origin={}, reasons=()
        )
        job.take(EpochReported(job.member(name), report))
    events = [e.event for e in job.effects if isinstance(e, Happened)]
    (entered,) = [event for event in events if isinstance(event, EpochEntered)]
    assert (entered.before, entered.number, entered.lost) == (None, job.last.number, ())


def test_from_disk_if_memory_is_not_whole():
    job = again(Job(small_plan(1, stages=2)).begin())
    job.take(CheckpointsFound({Version(4, EPOCH): "checkpoints/step-4"}))
    job = connect_all(job, version=7, without="n0")
    assert (job.last.kind, job.last.version) == ("restore", 4)
    why = "checkpoint checkpoints/step-4; in memory, version 7 is not whole ("
    assert job.last.reason.startswith(why)


def test_from_disk_if_memory_is_gone():
    job = again(Job().begin())
    job.take(CheckpointsFound({Version(4, EPOCH): "checkpoints/step-4"}))
    connect_all(job)
    assert (job.last.kind, job.last.version) == ("restore", 4)
    assert job.last.reason == "checkpoint checkpoints/step-4; memory holds nothing of it"


def test_from_the_start_if_there_is_nothing():
    job = connect_all(again(Job(first_step=3).begin()))
    assert (job.last.kind, job.last.at_step) == ("start", 3)
    assert job.last.reason.startswith("from the start: there is no valid checkpoint")


def test_of_a_history_that_was_given_up_nothing_is_used():
    job = again(Job().begin())
    connect_all(job, version=7, epoch=99)
    assert job.last.kind == "start"


def test_a_run_that_died_before_its_first_step_is_gone_on_from_as_easily():
    job = connect_all(again(Job().begin()), version=7)
    connect_all(again(job), version=7)
    assert (job.last.kind, job.last.version, job.settings.run) == ("restore", 7, 3)
    assert set(job.last.incarnations.values()) == {3}


def test_a_stop_and_an_end_are_of_the_run_before():
    job = Job().begin()
    job.take(StopWanted("SIGTERM"))
    job.journal.append(Ended("done", version=5))
    assert any(isinstance(entry, StopAsked) for entry in job.journal)
    connect_all(again(job), version=5)
    assert not job.coordinator.is_over
    assert job.last.version == 5


def test_a_stop_that_is_the_first_thing_it_hears_is_its_own():
    job = Job().begin()
    job.take(StopWanted("SIGTERM"))
    again(job).take(StopWanted("SIGINT"))
    assert job.coordinator._state.journal.stop == StopAsked("SIGINT")


def test_a_change_that_was_entered_when_all_died_shows_in_what_is_left():
    """Its order is journaled, that all have entered it is not."""
    job = Job().begin()
    job.take(_wanted(job, small_plan(1, micro_batches=2)))
    change = job.coordinator._state.journal.outstanding
    assert change is not None
    again(job)
    job.plan = small_plan(1, micro_batches=2)
    connect_all(job, version=6, epoch=change.number)
    assert (job.last.kind, job.last.version, job.last.agreed_in) == ("restore", 6, change.number)
    journal = job.coordinator._state.journal
    assert journal.epoch_of_step(5) == change.number
    assert journal.epoch_of_step(4) == EPOCH
    assert journal.epoch_of_step(6) == job.last.number


def _wanted(job: Job, plan):
    from holdfast.control.facts import PlanWanted

    return PlanWanted(plan, "test")


@pytest.mark.parametrize(("version", "replicas"), [(3, 2), (5, 1), (8, 1)])
def test_it_goes_on_with_the_plan_that_the_job_file_has_for_that_step(version, replicas):
    changes = (Planned(0, small_plan(2)), Planned(5, small_plan(1, micro_batches=2)))
    job = Job(changes=changes).begin()
    connect_all(again(job), version=version)
    assert len(job.last.incarnations) == replicas
    wanted = [e for e in job.journal if isinstance(e, Wanted) and e.at_step == 5]
    assert {len(parse_plan(entry.plan).workers) for entry in wanted} <= {1}


def test_a_stop_before_the_first_order_waits_for_the_memory_of_the_run_before():
    job = again(Job().begin())
    first, second = job.places
    job.take(StopWanted("SIGTERM"))
    for node in (first, second):
        assert not job.coordinator.is_over
        job.take(
            NodeConnected(
                node=node,
                agent="a2",
                places=tuple(job.places[node]),
                arenas=job.arenas(node, 7),
            )
        )
    assert job.coordinator.is_over
    (ended,) = [entry for entry in job.journal if isinstance(entry, Ended)]
    assert ended.version == 7
    finished = [effect for effect in job.effects if isinstance(effect, Finish)]
    assert finished == []  # not before it is written
