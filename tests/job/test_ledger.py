from math import inf, nan

import pytest

from holdfast.engine.trainer import ChangeReport, StepReport
from holdfast.errors import InternalError
from holdfast.job.config import Change, ParallelSection
from holdfast.job.ledger import HoldersDiffer, Ledger, count_groups
from holdfast.observe.events import PlanChanged, StepDone, StepSkipped

A, B = "n0.g0", "n0.g1"


def report(step=0, epoch=0, **fields) -> StepReport:
    values = {"seconds": 0.5, "loss": 2.0, "norm": 1.0, "num_tokens": 100, "learning_rate": 0.1}
    return StepReport(step=step, epoch=epoch, **{**values, "applied": True, **fields})


@pytest.fixture
def job(tiny_job):
    """Two replicas for two steps, then one worker, then two stages."""
    changes = [
        Change(at_step=2, parallel=ParallelSection()),
        Change(at_step=3, parallel=ParallelSection(stages=2)),
    ]
    return tiny_job(changes=changes, parallel=ParallelSection(replicas=2))


def test_a_step_counts_when_everybody_has_reported_it(job):
    ledger = Ledger(job)
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


def test_one_worker_may_be_ahead(job):
    ledger = Ledger(job)
    assert ledger.add_step(A, report(0)) == []
    assert ledger.add_step(A, report(1)) == []
    assert [event.step for event in ledger.add_step(B, report(0))] == [0]
    assert [event.step for event in ledger.add_step(B, report(1))] == [1]


def test_a_change_comes_before_the_steps_after_it(job):
    ledger = Ledger(job)
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


def test_a_step_that_nobody_applied(job):
    ledger = Ledger(job)
    bad = report(loss=nan, norm=inf, applied=False)
    ledger.add_step(A, bad)
    done, skipped = ledger.add_step(B, bad)
    assert (done.loss, done.norm, done.applied) == (None, None, False)
    assert skipped == StepSkipped(step=0, reason="loss or gradients were not finite")


def test_workers_that_disagree_on_the_outcome(job):
    ledger = Ledger(job)
    ledger.add_step(A, report(loss=2.0))
    with pytest.raises(HoldersDiffer, match=r"n0\.g0 and n0\.g1 differ in the loss of step 0"):
        ledger.add_step(B, report(loss=2.0000000000000004))


def test_holders_that_differ_are_named_with_step_and_unit(job):
    ledger = Ledger(job)
    ledger.add_step(A, report(checksums={"0/0": 1, "2/0": 7}))
    with pytest.raises(HoldersDiffer) as caught:
        ledger.add_step(B, report(checksums={"0/0": 1, "2/0": 8}))
    assert str(caught.value) == (
        "n0.g0 and n0.g1 differ in block.1 after step 0: checksums 7 and 8 of what both hold"
    )


def test_checksums_of_different_steps_are_not_compared(job):
    ledger = Ledger(job)
    for step in (0, 1):
        ledger.add_step(A, report(step, checksums={"0/0": step}))
        assert ledger.add_step(B, report(step, checksums={"0/0": step}))


def test_nobody_reports_a_step_twice(job):
    ledger = Ledger(job)
    ledger.add_step(A, report())
    with pytest.raises(InternalError, match="twice"):
        ledger.add_step(A, report())
