from math import inf, nan

from holdfast.control.job_events import EpochEntered, IdleNodeDied, StepCompleted, WorkerBlamed
from holdfast.control.worker_reports import ChangeReport, RestoreReport, StepReport
from holdfast.observe.events import (
    IdleNodeLost,
    PlanChanged,
    Restored,
    StepDone,
    StepSkipped,
    WorkerFailed,
)
from holdfast.plan.build import regular_plan
from holdfast.runtime.record.job_lines import JobLines, count_groups, step_events
from support.random_plans import make_units

A, B = "n0.g0", "n0.g1"
UNITS = make_units(4)
TWO = regular_plan(UNITS, replicas=2, micro_batches=2)
ONE = regular_plan(UNITS, micro_batches=2)
STAGES = regular_plan(UNITS, stages=2, micro_batches=2)
LINES = JobLines("gloo", {0: TWO, 1: ONE})


def test_a_step():
    report = StepReport(0, 0, 0.5, 2.0, 1.0, 100, 0.1, True)
    (done,) = step_events(StepCompleted(report, 0.8))
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


def test_a_step_that_was_not_applied():
    report = StepReport(0, 0, 0.5, nan, inf, 100, 0.1, False)
    done, skipped = step_events(StepCompleted(report, 0.8))
    assert (done.loss, done.norm, done.applied) == (None, None, False)
    assert skipped == StepSkipped(step=0, reason="loss nan or gradient norm inf is not finite")


def test_a_change_of_plan():
    reports = {A: ChangeReport(2, 1, 0.25, 0, 0, 0), B: ChangeReport(2, 1, 0.5, 10, 0, 0)}
    event = EpochEntered(number=1, before=0, reason="why", reports=reports, lost=(B,))
    (changed,) = LINES.events(event, 0.0)
    assert isinstance(changed, PlanChanged)
    assert (changed.epoch, changed.step, changed.stall_s, changed.bytes_moved) == (1, 2, 0.5, 10)
    assert (changed.shape, changed.leaving, changed.joining) == ("1 replica x 1 stage", (B,), ())
    assert (changed.groups_kept, changed.groups_made) == (0, 0)


def test_a_restore():
    reports = {A: RestoreReport(3, 1, 0.5, 0.1, {"local memory": 10}, ("why",))}
    event = EpochEntered(number=1, before=0, reason="lost", reports=reports, steps_redone=2)
    (restored,) = LINES.events(event, 0.0)
    assert isinstance(restored, Restored)
    assert (restored.step, restored.steps_redone) == (3, 2)
    assert (restored.bytes_by_origin, restored.sources) == ({"local memory": 10}, ("why",))


def test_a_failure_that_ends_the_job():
    (failed,) = LINES.events(WorkerBlamed(A, "r0.s0", 3, "was killed"), 0.0)
    assert failed == WorkerFailed(worker=A, role="r0.s0", step=3, reason="was killed")


def test_a_node_without_any_process_is_named_itself():
    (lost,) = LINES.events(IdleNodeDied("n8", "its agent was killed"), 0.0)
    assert lost == IdleNodeLost(node="n8", reason="its agent was killed")


def test_groups_are_counted_once():
    # `all` lives on, and the link is new; there is nothing left to reduce over.
    assert count_groups(TWO, STAGES, "gloo") == (1, 1)
    assert count_groups(TWO, STAGES, "nccl") == (1, 2)
