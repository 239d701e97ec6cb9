from math import inf, nan

import pytest

from holdfast.engine.reports import ChangeReport, RecoveryReport, RestoreReport, StepReport
from holdfast.observe.events import PlanChanged, Recovered, StepDone, StepSkipped
from holdfast.plan.without_workers import without_workers
from holdfast.runtime.config.job_file import ChangeSection, ParallelSection
from holdfast.runtime.record.step_aggregator import (
    HoldersDiffer,
    KnownEpoch,
    StepAggregator,
    count_groups,
)

A, B = "n0.g0", "n0.g1"


def report(step=0, epoch=0, **fields) -> StepReport:
    values = {"seconds": 0.5, "loss": 2.0, "norm": 1.0, "num_tokens": 100, "learning_rate": 0.1}
    return StepReport(step=step, epoch=epoch, **{**values, "applied": True, **fields})


def epoch(number: int, plan, kind="change", before: int | None = None) -> KnownEpoch:
    return KnownEpoch(number=number, kind=kind, plan=plan, reason="why", before=before)


@pytest.fixture
def job(tiny_job):
    """Two replicas for two steps, then one worker, then two stages."""
    changes = [
        ChangeSection(at_step=2, parallel=ParallelSection()),
        ChangeSection(at_step=3, parallel=ParallelSection(stages=2)),
    ]
    return tiny_job(changes=changes, parallel=ParallelSection(replicas=2))


@pytest.fixture
def ledger(job):
    ledger = StepAggregator("gloo")
    for number, planned in enumerate(job.plans):
        ledger.begin(epoch(number, planned.plan, before=number - 1 if number else None))
    return ledger


def test_a_step_counts_when_everybody_has_reported_it(ledger):
    assert ledger.add_step(A, report(seconds=0.5)) == []
    (done,) = ledger.add_step(B, report(seconds=0.8))
    assert done == StepDone(
        step=0,
        epoch=0,
        loss=2.0,
        norm=1.0,
        tokens=100,
        tokens_per_s=125.0,
        step_time_s=0.8,
        learning_rate=0.1,
        applied=True,
    )
    assert ledger.next_step == 1


def test_one_worker_may_be_ahead(ledger):
    assert ledger.add_step(A, report(0)) == []
    assert ledger.add_step(A, report(1)) == []
    assert [event.step for event in ledger.add_step(B, report(0))] == [0]
    assert [event.step for event in ledger.add_step(B, report(1))] == [1]


def test_a_change_comes_before_the_steps_after_it(ledger):
    for step in (0, 1):
        ledger.add_step(A, report(step))
        ledger.add_step(B, report(step))
    assert ledger.add_change(A, ChangeReport(2, 1, 0.25, 0, 0, 0)) == []
    # The one that stays trains on while the report of the one that leaves is on its way.
    assert ledger.add_step(A, report(2, epoch=1)) == []
    changed, done = ledger.add_change(B, ChangeReport(2, 1, 0.5, 10, 0, 0))
    assert isinstance(changed, PlanChanged)
    assert (changed.epoch, changed.step, changed.stall_s, changed.bytes_moved) == (1, 2, 0.5, 10)
    assert (changed.shape, changed.leaving, changed.joining) == ("1 replica x 1 stage", (B,), ())
    assert (changed.groups_kept, changed.groups_made) == (0, 0)
    assert isinstance(done, StepDone)
    assert done.step == 2


def test_groups_are_counted_once(job):
    first, _, last = (planned.plan for planned in job.plans)
    # `all` lives on, and the link is new; there is nothing left to reduce over.
    assert count_groups(first, last, "gloo") == (1, 1)
    assert count_groups(first, last, "nccl") == (1, 2)


def test_a_step_that_nobody_applied(ledger):
    bad = report(loss=nan, norm=inf, applied=False)
    ledger.add_step(A, bad)
    done, skipped = ledger.add_step(B, bad)
    assert (done.loss, done.norm, done.applied) == (None, None, False)
    assert skipped == StepSkipped(step=0, reason="loss or gradients were not finite")


def test_workers_that_disagree_on_the_outcome(ledger):
    ledger.add_step(A, report(loss=2.0))
    with pytest.raises(HoldersDiffer, match=r"n0\.g0 and n0\.g1 differ in the loss of step 0"):
        ledger.add_step(B, report(loss=2.0000000000000004))


def test_holders_that_differ_are_named_with_step_and_unit(ledger):
    ledger.add_step(A, report(checksums={"0/0": 1, "2/0": 7}))
    with pytest.raises(HoldersDiffer) as caught:
        ledger.add_step(B, report(checksums={"0/0": 1, "2/0": 8}))
    assert str(caught.value) == (
        "n0.g0 and n0.g1 differ in block.1 after step 0: checksums 7 and 8 of what both hold"
    )


def test_checksums_of_different_steps_are_not_compared(ledger):
    for step in (0, 1):
        ledger.add_step(A, report(step, checksums={"0/0": step}))
        assert ledger.add_step(B, report(step, checksums={"0/0": step}))


def test_what_is_told_again_is_left_out(ledger):
    ledger.add_step(A, report())
    assert ledger.add_step(A, report()) == []
    assert len(ledger.add_step(B, report())) == 1
    assert ledger.add_step(B, report()) == []
    assert ledger.next_step == 1


def test_a_ledger_that_takes_over_goes_on_where_the_last_one_ended(job):
    ledger = StepAggregator("gloo", next_step=5)
    ledger.begin(epoch(0, job.plans[0].plan))
    for worker in (A, B):
        assert ledger.add_step(worker, report(4)) == []
    ledger.add_step(A, report(5))
    assert [event.step for event in ledger.add_step(B, report(5))] == [5]


@pytest.fixture
def recovered(job):
    """Step 0 is done; B was lost in step 1; A recovers in epoch 3."""
    ledger = StepAggregator("gloo")
    ledger.begin(epoch(1, job.plans[0].plan, "start"))
    for worker in (A, B):
        ledger.add_step(worker, report(0, epoch=1))
    ledger.lose(B)
    ledger.begin(epoch(3, without_workers(job.plans[0].plan, [B])[0], "recover", before=1))
    return ledger


def test_a_recovery_waits_only_for_those_who_are_left(recovered):
    assert recovered.add_step(A, report(1, epoch=3)) == []
    back, done = recovered.add_change(A, RecoveryReport(1, 3, 0.5, 2, False))
    assert isinstance(back, Recovered)
    assert (back.epoch, back.step, back.lost, back.stall_s) == (3, 1, (B,), 0.5)
    assert (back.micro_batches, back.num_followed) == (2, 0)
    assert (done.step, done.epoch) == (1, 3)


def test_a_step_agreed_before_the_loss_is_complete_without_the_lost(recovered):
    """A has applied it when B died; nobody waits for B's word on it."""
    assert [event.step for event in recovered.add_step(A, report(1, epoch=1))] == [1]


def test_who_lives_and_has_no_seat_after_a_recovery_is_not_waited_for(job):
    """B's replica was lost around it, in the middle of step 1, which A has done."""
    ledger = StepAggregator("gloo", next_step=1)
    ledger.begin(epoch(1, job.plans[0].plan, "start"))
    assert ledger.add_step(A, report(1, epoch=1)) == []
    (done,) = ledger.begin(epoch(3, job.plans[1].plan, "recover", before=1))
    assert done.step == 1
    (back,) = ledger.add_change(A, RecoveryReport(2, 3, 0.5, 2, False))
    assert back.lost == (B,)
    assert ledger.add_step(B, report(1, epoch=1)) == [], "it comes late"


def test_who_was_lost_is_waited_for_again_when_it_has_joined(recovered, job):
    recovered.add_change(A, RecoveryReport(1, 3, 0.5, 0, False))
    recovered.begin(epoch(4, job.plans[0].plan, before=3))
    assert recovered.add_change(A, ChangeReport(2, 4, 0.1, 0, 0, 0)) == []
    (joined,) = recovered.add_change(B, ChangeReport(2, 4, 0.2, 10, 0, 0))
    assert (joined.joining, joined.epoch) == ((B,), 4)
    assert [event.step for event in recovered.add_step(A, report(1, epoch=3))] == [1]
    assert recovered.add_step(A, report(2, epoch=4)) == []
    assert [event.step for event in recovered.add_step(B, report(2, epoch=4))] == [2]


def test_an_epoch_that_came_to_nothing_is_passed_over(recovered, job):
    recovered.begin(epoch(4, job.plans[0].plan, before=3))
    recovered.drop(4)
    recovered.begin(epoch(5, job.plans[1].plan, "recover", before=3))
    (back,) = recovered.add_change(A, RecoveryReport(1, 5, 0.5, 0, True))
    assert (back.epoch, back.lost) == (5, (B,)), "B was lost in an epoch that nobody got into"
    assert [event.step for event in recovered.add_step(A, report(1, epoch=5))] == [1]


def test_restored_steps_are_done_again(recovered, job):
    done = recovered.next_step
    recovered.rewind(0, 7)
    assert recovered.next_step == 0
    assert recovered.add_step(A, report(0, epoch=1)) == [], "of the history that was given up"
    recovered.begin(epoch(7, job.plans[1].plan, "restore", before=3))
    told = RestoreReport(0, 7, 0.5, 0.1, {"local memory": 10}, ("why",))
    (restored,) = recovered.add_change(A, told)
    assert (restored.step, restored.steps_redone) == (0, done)
    assert (restored.bytes_by_origin, restored.sources) == ({"local memory": 10}, ("why",))
    assert [event.step for event in recovered.add_step(A, report(0, epoch=7))] == [0]
