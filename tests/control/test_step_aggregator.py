import pytest

from holdfast.control.facts import StepReported
from holdfast.control.job_events import EpochEntered, Recorded, StepCompleted, StepsUnrecorded
from holdfast.control.report import Member
from holdfast.control.step_aggregator import HoldersDiffer, KnownEpoch, StepAggregator
from holdfast.control.worker_reports import (
    ChangeReport,
    Planned,
    RecoveryReport,
    RestoreReport,
    StepReport,
)
from holdfast.plan.build import regular_plan
from holdfast.plan.without_workers import without_workers
from support.random_plans import make_units

A, B = "n0.g0", "n0.g1"
UNITS = make_units(4)


def report(step=0, epoch=0, **fields) -> StepReport:
    values = {"seconds": 0.5, "loss": 2.0, "norm": 1.0, "num_tokens": 100, "learning_rate": 0.1}
    return StepReport(step=step, epoch=epoch, **{**values, "applied": True, **fields})


def epoch(number: int, plan, kind="change", before: int | None = None) -> KnownEpoch:
    return KnownEpoch(number=number, kind=kind, plan=plan, reason="why", before=before)


class Plans:
    """Two replicas, then one worker, then two stages."""

    plans = (
        Planned(0, regular_plan(UNITS, replicas=2, micro_batches=2)),
        Planned(2, regular_plan(UNITS, micro_batches=2)),
        Planned(3, regular_plan(UNITS, stages=2, micro_batches=2)),
    )


@pytest.fixture
def job():
    return Plans()


@pytest.fixture
def aggregator(job):
    aggregator = StepAggregator()
    for number, planned in enumerate(job.plans):
        aggregator.begin(epoch(number, planned.plan, before=number - 1 if number else None))
    return aggregator


def test_a_step_counts_when_every_worker_has_reported_it(aggregator):
    assert aggregator.add_step(A, report(seconds=0.5)) == []
    (done,) = aggregator.add_step(B, report(seconds=0.8))
    assert done == StepCompleted(report(seconds=0.5), 0.8)
    assert aggregator.next_step == 1


def test_one_worker_may_be_ahead(aggregator):
    assert aggregator.add_step(A, report(0)) == []
    assert aggregator.add_step(A, report(1)) == []
    assert [event.report.step for event in aggregator.add_step(B, report(0))] == [0]
    assert [event.report.step for event in aggregator.add_step(B, report(1))] == [1]


def test_a_change_comes_before_the_steps_after_it(aggregator):
    for step in (0, 1):
        aggregator.add_step(A, report(step))
        aggregator.add_step(B, report(step))
    assert aggregator.add_change(A, ChangeReport(2, 1, 0.25, 0, 0, 0)) == []
    # The one that stays trains on while the report of the one that leaves is on its way.
    assert aggregator.add_step(A, report(2, epoch=1)) == []
    changed, done = aggregator.add_change(B, ChangeReport(2, 1, 0.5, 10, 0, 0))
    assert isinstance(changed, EpochEntered)
    assert (changed.number, changed.before, sorted(changed.reports)) == (1, 0, [A, B])
    assert changed.lost == (B,)
    assert isinstance(done, StepCompleted)
    assert done.report.step == 2


def test_workers_that_disagree_on_the_outcome(aggregator):
    aggregator.add_step(A, report(loss=2.0))
    with pytest.raises(HoldersDiffer, match=r"n0\.g0 and n0\.g1 differ in the loss of step 0"):
        aggregator.add_step(B, report(loss=2.0000000000000004))


def test_holders_that_differ_are_named_with_step_and_unit(aggregator):
    aggregator.add_step(A, report(checksums={"0/0": 1, "2/0": 7}))
    with pytest.raises(HoldersDiffer) as caught:
        aggregator.add_step(B, report(checksums={"0/0": 1, "2/0": 8}))
    assert str(caught.value) == (
        "n0.g0 and n0.g1 differ in "
        + UNITS[2].name
        + " after step 0: checksums 7 and 8 of what both hold"
    )


def test_checksums_of_different_steps_are_not_compared(aggregator):
    for step in (0, 1):
        aggregator.add_step(A, report(step, checksums={"0/0": step}))
        assert aggregator.add_step(B, report(step, checksums={"0/0": step}))


def test_what_is_told_again_is_left_out(aggregator):
    aggregator.add_step(A, report())
    assert aggregator.add_step(A, report()) == []
    assert len(aggregator.add_step(B, report())) == 1
    assert aggregator.add_step(B, report()) == []
    assert aggregator.next_step == 1


def test_a_ledger_that_takes_over_goes_on_where_the_last_one_ended(job):
    aggregator = StepAggregator(next_step=5)
    aggregator.begin(epoch(0, job.plans[0].plan))
    for worker in (A, B):
        assert aggregator.add_step(worker, report(4)) == []
    aggregator.add_step(A, report(5))
    assert [event.report.step for event in aggregator.add_step(B, report(5))] == [5]


@pytest.fixture
def recovered(job):
    """Step 0 is done; B was lost in step 1; A recovers in epoch 3."""
    aggregator = StepAggregator()
    aggregator.begin(epoch(1, job.plans[0].plan, "start"))
    for worker in (A, B):
        aggregator.add_step(worker, report(0, epoch=1))
    aggregator.lose(B)
    aggregator.begin(epoch(3, without_workers(job.plans[0].plan, [B])[0], "recover", before=1))
    return aggregator


def test_a_recovery_waits_only_for_those_who_are_left(recovered):
    assert recovered.add_step(A, report(1, epoch=3)) == []
    back, done = recovered.add_change(A, RecoveryReport(1, 3, 0.5, 2, False))
    assert isinstance(back, EpochEntered)
    assert (back.number, back.lost, list(back.reports)) == (3, (B,), [A])
    assert (done.report.step, done.report.epoch) == (1, 3)


def test_a_step_agreed_before_the_loss_is_complete_without_the_lost(recovered):
    """A has applied it when B died; no worker waits for B's word on it."""
    assert [event.report.step for event in recovered.add_step(A, report(1, epoch=1))] == [1]


def test_who_lives_and_has_no_seat_after_a_recovery_is_not_waited_for(job):
    """B's replica was lost around it, in the middle of step 1, which A has done."""
    aggregator = StepAggregator(next_step=1)
    aggregator.begin(epoch(1, job.plans[0].plan, "start"))
    assert aggregator.add_step(A, report(1, epoch=1)) == []
    (done,) = aggregator.begin(epoch(3, job.plans[1].plan, "recover", before=1))
    assert done.report.step == 1
    (back,) = aggregator.add_change(A, RecoveryReport(2, 3, 0.5, 2, False))
    assert back.lost == (B,)
    assert aggregator.add_step(B, report(1, epoch=1)) == [], "it comes late"


def test_who_was_lost_is_waited_for_again_when_it_has_joined(recovered, job):
    recovered.add_change(A, RecoveryReport(1, 3, 0.5, 0, False))
    recovered.begin(epoch(4, job.plans[0].plan, before=3))
    assert recovered.add_change(A, ChangeReport(2, 4, 0.1, 0, 0, 0)) == []
    (joined,) = recovered.add_change(B, ChangeReport(2, 4, 0.2, 10, 0, 0))
    assert (joined.number, sorted(joined.reports)) == (4, [A, B])
    assert [event.report.step for event in recovered.add_step(A, report(1, epoch=3))] == [1]
    assert recovered.add_step(A, report(2, epoch=4)) == []
    assert [event.report.step for event in recovered.add_step(B, report(2, epoch=4))] == [2]


def test_an_epoch_that_came_to_nothing_is_passed_over(recovered, job):
    recovered.begin(epoch(4, job.plans[0].plan, before=3))
    recovered.drop(4)
    recovered.begin(epoch(5, job.plans[1].plan, "recover", before=3))
    (back,) = recovered.add_change(A, RecoveryReport(1, 5, 0.5, 0, True))
    assert (back.number, back.lost) == (5, (B,)), "B was lost in an epoch that no worker got into"
    assert [event.report.step for event in recovered.add_step(A, report(1, epoch=5))] == [1]


def test_restored_steps_are_done_again(recovered, job):
    done = recovered.next_step
    recovered.rewind(0, 7)
    assert recovered.next_step == 0
    assert recovered.add_step(A, report(0, epoch=1)) == [], "of the history that was given up"
    recovered.begin(epoch(7, job.plans[1].plan, "restore", before=3))
    told = RestoreReport(0, 7, 0.5, 0.1, {"local memory": 10}, ("why",))
    (restored,) = recovered.add_change(A, told)
    assert (restored.reports, restored.steps_redone) == ({A: told}, done)
    assert [event.report.step for event in recovered.add_step(A, report(0, epoch=7))] == [0]


def test_what_a_fenced_worker_ended_on_its_own_does_not_count(recovered):
    """B has applied step 1 in epoch 1, alone; the others complete it in epoch 3."""
    recovered.rewind(1, 3)
    assert recovered.add_step(B, report(1, epoch=1, loss=9.0)) == []
    recovered.add_change(A, RecoveryReport(1, 3, 0.5, 0, False))
    assert [event.report.step for event in recovered.add_step(A, report(1, epoch=3))] == [1]


def test_a_job_that_begins_again_counts_from_its_beginning(job):
    aggregator = StepAggregator()
    aggregator.begin(epoch(1, job.plans[1].plan, "start"))
    aggregator.begin(epoch(3, job.plans[1].plan, "start", before=1))
    assert [event.report.step for event in aggregator.add_step(A, report(0, epoch=3))] == [0]


@pytest.mark.parametrize(("step_epoch", "next_step"), [(1, 4), (7, 6)])
def test_a_successor_counts_steps_again_that_were_undone_and_not_redone(step_epoch, next_step):
    aggregator = StepAggregator()
    aggregator.rewind(4, 7)
    aggregator.resume(Recorded(next_step=6, step_epoch=step_epoch, epoch=7))
    assert (aggregator.next_step, aggregator.epoch) == (next_step, 7)


def restored_at(job, step):
    """Two workers; A has done step 3 alone when state is restored at `step`, in epoch 7."""
    aggregator = StepAggregator(next_step=3)
    aggregator.begin(epoch(1, job.plans[0].plan, "start"))
    aggregator.add_step(A, report(3, epoch=1))
    aggregator.rewind(step, 7)
    assert aggregator.begin(epoch(7, job.plans[0].plan, "restore", before=1)) == []
    events = []
    for worker in (A, B):
        events += aggregator.add_change(worker, RestoreReport(step, 7, 0.5, 0.1, {}))
    return aggregator, events


def test_a_step_that_was_restored_from_needs_no_more_reports(job):
    """B had not done step 3, and never does: the job goes on from A's snapshot of it."""
    aggregator, (restored, done) = restored_at(job, 4)
    assert isinstance(restored, EpochEntered)
    assert done.report.step == 3
    assert aggregator.next_step == 4


def test_steps_whose_reports_are_lost_are_passed_over(job):
    aggregator, (_, done) = restored_at(job, 6)
    assert (done.report.step, aggregator.next_step) == (3, 4)
    assert aggregator.add_step(A, report(6, epoch=7)) == []
    passed, next_done = aggregator.add_step(B, report(6, epoch=7))
    assert passed == StepsUnrecorded(4, 5)
    assert next_done.report.step == 6


def test_at_the_end_lost_reports_are_named(job):
    """State of the last step was restored, and no step comes after it."""
    aggregator, _ = restored_at(job, 8)
    (passed,) = aggregator.conclude(8)
    assert (passed, aggregator.next_step) == (StepsUnrecorded(4, 7), 8)
    assert aggregator.conclude(8) == []


def test_at_the_end_one_workers_word_is_enough(job):
    aggregator = StepAggregator(next_step=3)
    aggregator.begin(epoch(1, job.plans[0].plan, "start"))
    assert aggregator.add_step(A, report(4, epoch=1)) == []
    first, done, last = aggregator.conclude(6)
    assert (first, done.report.step, last) == (StepsUnrecorded(3, 3), 4, StepsUnrecorded(5, 5))


def test_at_the_end_a_step_of_an_epoch_that_has_not_begun_is_lost(job):
    aggregator = StepAggregator(next_step=3)
    aggregator.begin(epoch(1, job.plans[0].plan, "start"))
    aggregator.begin(epoch(2, job.plans[1].plan, "change", before=1))
    assert aggregator.add_step(A, report(3, epoch=2)) == []
    assert aggregator.conclude(4) == [StepsUnrecorded(3, 3)]


def test_a_fenced_workers_word_counts_where_no_other_is_left_to_say_it(job):
    """Its agent tells its steps again, after a coordinator was away and the worker has died."""
    steps = StepAggregator()
    steps.begin(epoch(0, job.plans[1].plan))
    steps.lose(A)
    for step in (0, 1, 2):
        steps.add_late(A, StepReported(Member(A, 1), report(step)))
    assert steps.next_step == 0
    steps.rewind(2, 5)  # the next order goes on from step 2, which the worker ended on its own
    done = steps.begin(epoch(5, job.plans[1].plan, kind="restore", before=0))
    done += steps.add_change(A, RestoreReport(2, 5, 0.1, 0.1, {}, ()))
    assert [event.report.step for event in done if isinstance(event, StepCompleted)] == [0, 1]
    assert steps.next_step == 2


def test_it_counts_as_well_when_it_comes_after_the_order(job):
    steps = StepAggregator()
    steps.begin(epoch(0, job.plans[1].plan))
    steps.lose(A)
    steps.rewind(2, 5)
    steps.begin(epoch(5, job.plans[1].plan, kind="restore", before=0))
    done = steps.add_change(A, RestoreReport(2, 5, 0.1, 0.1, {}, ()))
    for step in (0, 1, 2):
        done += steps.add_late(A, StepReported(Member(A, 1), report(step)))
    assert [event.report.step for event in done if isinstance(event, StepCompleted)] == [0, 1]
    assert steps.next_step == 2


def test_a_fenced_workers_word_is_not_replaced_by_that_of_a_history_given_up(job):
    """Step 1 was done in epoch 0, and again after a rollback in epoch 5; its workers have died."""
    steps = StepAggregator(next_step=1)
    steps.begin(epoch(0, job.plans[1].plan))
    steps.rewind(1, 5)
    steps.begin(epoch(5, job.plans[1].plan, kind="restore", before=0))
    steps.lose(A)
    for number in (5, 0):
        assert steps.add_late(A, StepReported(Member(A, 1), report(1, epoch=number))) == []
    steps.rewind(2, 7)
    done = steps.begin(epoch(7, job.plans[1].plan, kind="recover", before=5))
    done += steps.add_change(A, RecoveryReport(2, 7, 0.1, 0, False))
    logged = [event.report for event in done if isinstance(event, StepCompleted)]
    assert [(told.step, told.epoch) for told in logged] == [(1, 5)]


def test_a_step_that_is_done_again_after_a_rollback_waits_for_all(job):
    """The job had recovered at step 3 before it went back to step 2; of step 2 there is the word of
    a worker that has died since, when the last of the others says that it has entered.
    """
    steps = StepAggregator()
    steps.begin(epoch(0, job.plans[0].plan))
    for step in (0, 1, 2):
        for worker in (A, B):
            steps.add_step(worker, report(step))
    for number, step, kind in ((5, 3, "recover"), (6, 2, "restore")):
        steps.rewind(step, number)
        steps.begin(epoch(number, job.plans[0].plan, kind=kind, before=0))
    steps.add_change(A, RestoreReport(2, 6, 0.1, 0.1, {}, ()))
    steps.add_step(A, report(2, epoch=6))
    steps.lose(A)
    done = steps.add_change(B, RestoreReport(2, 6, 0.1, 0.1, {}, ()))
    assert [type(event) for event in done] == [EpochEntered]
    assert steps.next_step == 2
