"""What the parts of a trainer share."""

from types import SimpleNamespace

import pytest

from holdfast.control.order import FullPlan, Order, PlanWithout, SamePlan
from holdfast.control.report import Member
from holdfast.control.worker import WorkerMachine
from holdfast.engine.epoch import LiveEpoch, TrainerConfig
from holdfast.engine.mesh import Mesh
from holdfast.engine.worker_parts import WorkerParts
from holdfast.plan.build import regular_plan
from holdfast.plan.text import format_plan
from support.training import Task

PLAN = regular_plan(Task().units, replicas=2, micro_batches=4)


class Snapshots:
    def __init__(self):
        self.calls = []

    def enter(self, plan, slices, since):
        self.calls.append(("enter", since))

    def prefetch(self, plan):
        self.calls.append(("prefetch", plan))

    def leave(self):
        self.calls.append(("leave", None))


@pytest.fixture
def parts():
    nothing = SimpleNamespace()
    machine = WorkerMachine(Member("n0.g0", 1))
    config = TrainerConfig(num_steps=1)
    made = WorkerParts(machine, config, nothing, nothing, nothing, nothing)
    made.snapshots = Snapshots()
    return made


def order(number, plan):
    return Order(number=number, kind="recover", plan=plan, incarnations={})


def test_plans_are_known_by_the_order_they_came_with(parts):
    full = parts.learn_plan(order(1, FullPlan(format_plan(PLAN))))
    less = parts.learn_plan(order(4, PlanWithout(1, ("n0.g1",))))
    assert (full, less.workers) == (PLAN, ("n0.g0",))
    assert parts.learn_plan(order(5, SamePlan(4))) is less


def test_what_a_plan_needs_is_worked_out_before_it_is_entered(parts):
    parts.builder = SimpleNamespace(prefetch=parts.snapshots.calls.append)
    parts.prefetch(PLAN)
    assert parts.snapshots.calls == [PLAN, ("prefetch", PLAN)]
    parts.snapshots = None
    parts.builder.prefetch = lambda plan: None
    parts.prefetch(PLAN)


def test_snapshots_are_of_an_epoch_that_runs_steps(parts):
    epoch = LiveEpoch(1, PLAN, Mesh(PLAN, 1, {}, 0))
    parts.enter(epoch)
    epoch.interpreter = SimpleNamespace()
    parts.enter(epoch, "version")
    parts.enter(None)
    assert parts.snapshots.calls == [("leave", None), ("enter", "version"), ("leave", None)]


def test_losses_that_count_are_kept_until_the_step_is_completed():
    epoch = LiveEpoch(1, PLAN, Mesh(PLAN, 1, {}, 0))
    epoch.keep_losses({3: "loss"})
    assert epoch.losses == {3: "loss"}
    epoch.interpreter = SimpleNamespace(losses={})
    assert epoch.losses == {}
