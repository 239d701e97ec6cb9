"""A step breaks off, anywhere, and is completed: real groups, every worker a thread."""

import time

import pytest
import torch

from holdfast.engine.group_keys import needed_groups
from holdfast.engine.order_executor import OrderExecutor
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Schedule
from holdfast.plan.without_workers import without_workers
from support.sample import diagonal, some
from support.threaded_job import Fault, ThreadedJob, ThreadLink, assert_survives
from support.training import TIED, Task

TASK = Task(num_steps=4)
TIED_TASK = Task(shape=TIED, num_steps=4)


def plan(task=TASK, **degrees):
    return regular_plan(task.units, micro_batches=task.num_micro_batches, **degrees)


REPLICAS = plan(replicas=3)
PLANS = {
    "replicas 3": REPLICAS,
    "replicas 2 stages 2": plan(replicas=2, stages=2),
    "zero-bubble": plan(replicas=2, stages=2, schedule="zero-bubble"),
    "tensor 3": plan(replicas=2, tensor=3),
    "recompute": plan(replicas=2, stages=2, schedule=Schedule(kind="1f1b", recompute=True)),
}
PHASES = ("forward", "backward", "reduce 1", "reduced", "agree", "agreed", "apply", "applied")


def survive(plan, *faults, task=TASK, **more):
    return assert_survives(ThreadedJob(task, plan, faults, restart=False, **more))


@pytest.mark.parametrize(("name", "phase"), diagonal([*PLANS], PHASES))
def test_a_death_in_every_phase(name, phase):
    victim = PLANS[name].workers[-1]
    job = survive(PLANS[name], Fault(victim, 1, phase))
    assert job.recoveries


@pytest.mark.parametrize("degrees", [{"tensor": 2}, {"shard": 2}, {"stages": 2}], ids=str)
def test_groups_without_the_dead_live_on(degrees):
    """Where nothing was under way in them. Each group is counted once, as kept or as made."""
    whole = plan(replicas=2, **degrees)
    job = survive(whole, Fault("n0.g3", 1, "reduce 1"))
    left, _ = without_workers(whole, ["n0.g3"])
    needed = {key for name in left.workers for key in needed_groups(left, name, "gloo")}
    kept = sum(report.num_groups_kept for _, report in job.recoveries)
    made = sum(report.num_groups_made for _, report in job.recoveries)
    assert kept + made >= len(needed)
    before = {key for name in left.workers for key in needed_groups(whole, name, "gloo")}
    assert kept <= len(needed & before)


@pytest.mark.parametrize("phase", some(["reduce 3", "reduce 5"], ["reduce 5"]))
def test_a_death_in_a_later_bucket(phase):
    survive(REPLICAS, Fault("n0.g1", 1, phase))


def test_a_death_while_a_message_is_sent():
    survive(PLANS["replicas 2 stages 2"], Fault("n0.g2", 1, "message"))


@pytest.mark.parametrize(
    "phase", some(["forward", "reduce 2", "agree", "agreed"], ["reduce 2", "agree"])
)
def test_a_broken_connection_without_a_death_costs_no_worker_its_place(phase):
    job = survive(REPLICAS, Fault("n0.g0", 1, phase, "break"))
    assert {member.name for member, _ in job.recoveries} == set(REPLICAS.workers)


def test_who_did_not_see_the_agreement_follows_those_who_did():
    """The others have applied the step; this one has its gradients and takes their outcome."""
    job = survive(REPLICAS, Fault("n0.g0", 1, "agreed", "break"))
    assert [member.name for member, report in job.recoveries if report.rolled_forward] == ["n0.g0"]


def test_followers_after_a_death():
    survive(REPLICAS, Fault("n0.g0", 1, "agreed", "break"), Fault("n0.g2", 1, "applied"))


@pytest.mark.parametrize(("phase", "victim"), diagonal(["backward", "reduce 1", "agreed"], [0, -1]))
def test_tied_embeddings_on_the_first_and_the_last_stage(phase, victim):
    tied = plan(TIED_TASK, replicas=2, stages=2)
    survive(tied, Fault(tied.workers[victim], 1, phase), task=TIED_TASK)


def test_a_stall_ends_with_the_completed_step(monkeypatch):
    """And not when all that is told of it, checksums included, has been worked out."""
    broken_at, told_at = {}, {}
    recovered, step_done = OrderExecutor._recovered, ThreadLink.step_done

    def note_break(orders, *rest):
        parts = orders._parts
        broken_at[parts.position.member] = parts.broken_at
        recovered(orders, *rest)

    def note_report(link, report):
        told_at[link.member, report.step] = time.perf_counter()
        step_done(link, report)

    monkeypatch.setattr(OrderExecutor, "_recovered", note_break)
    monkeypatch.setattr(ThreadLink, "step_done", note_report)
    job = survive(plan(replicas=3), Fault("n0.g2", 1, "backward"))
    assert job.recoveries
    for member, report in job.recoveries:
        assert 0 < report.stall_s <= told_at[member, report.step] - broken_at[member]


def test_two_deaths_in_one_step():
    survive(REPLICAS, Fault("n0.g0", 1, "reduce 1"), Fault("n0.g2", 1, "reduce 2"))


@pytest.mark.parametrize(
    ("phase", "skip"),
    some([("forward", 2), ("reduce 1", 1), ("agree", 0)], [("forward", 2), ("agree", 0)]),
)
def test_a_second_death_while_the_step_is_completed(phase, skip):
    """The second victim has lived through the first part: its micro-batches and its share of the
    first victim's are lost with it.
    """
    task = Task(num_steps=4, num_micro_batches=8)
    wide = plan(task, replicas=4)
    job = survive(
        wide, Fault("n0.g1", 1, "reduce 1"), Fault("n0.g2", 1, phase, skip=skip), task=task
    )
    assert {report.step for _, report in job.recoveries} <= {1, 2}


def test_all_replicas_but_one():
    wide = plan(replicas=3, stages=2)
    survive(
        wide,
        Fault("n0.g0", 1, "backward"),
        Fault("n0.g1", 1, "backward"),
        Fault("n0.g4", 1, "forward"),
        Fault("n0.g5", 2, "forward"),
    )


def test_lost_micro_batches_are_left_out_in_mode_fast():
    job = ThreadedJob(
        TASK, REPLICAS, [Fault("n0.g1", 1, "forward")], restart=False, settings={"mode": "fast"}
    )
    job.run()
    tokens = {r.step: r.num_tokens for reports in job.steps.values() for r in reports}
    rates = {r.step: r.learning_rate for reports in job.steps.values() for r in reports}
    assert tokens[1] < tokens[0] == tokens[2] == tokens[3]
    share = tokens[1] / tokens[0]
    assert rates[1] == pytest.approx(rates[0] * share**0.5)
    first, second = job.final_trainers
    for name, piece in first.slices.items():
        assert torch.equal(piece.parameter, second.slices[name].parameter)
