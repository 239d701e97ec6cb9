"""Planned changes that a failure catches half way: entered by all or by nobody."""

import pytest

from holdfast.control.order import FullPlan, Order
from holdfast.engine.background import Background
from holdfast.engine.change import PATIENCE_S, Change
from holdfast.engine.groups import GroupBroken
from holdfast.plan.build import regular_plan
from holdfast.plan.transition import plan_transition
from support.threaded_job import ANY_STEP, Fault, ThreadedJob, assert_survives
from support.training import Task

TASK = Task(num_steps=40)
REPLICAS = regular_plan(TASK.units, replicas=3, micro_batches=4)
FIRST_LOSS = Fault("n0.g2", 2, "forward")


def survive(*faults):
    lost = Fault(FIRST_LOSS.worker, FIRST_LOSS.step, FIRST_LOSS.phase)
    return assert_survives(ThreadedJob(TASK, REPLICAS, [lost, *faults]))


@pytest.mark.parametrize("kind", ["die", "break"])
@pytest.mark.parametrize("phase", ["switch", "entered"])
@pytest.mark.parametrize("worker", ["n0.g0", "n0.g1"])
def test_a_failure_in_the_middle_of_the_switch(worker, phase, kind):
    survive(Fault(worker, ANY_STEP, phase, kind))


def test_a_joiner_that_dies_before_the_first_unit():
    survive(Fault("n0.g2", ANY_STEP, "join", incarnation=2))


def test_a_joiner_that_dies_when_it_has_entered():
    survive(Fault("n0.g2", ANY_STEP, "entered", incarnation=2))


def test_a_joiner_whose_links_break_joins_again():
    survive(Fault("n0.g2", ANY_STEP, "join", "break", incarnation=2))


def test_a_change_that_cannot_be_prepared_is_an_error_after_a_while():
    """At once it would be a recovery for every joiner that dies."""

    def fail():
        raise GroupBroken("nobody came")

    good, bad = Background("good", lambda: None), Background("bad", fail)
    for one in (good, bad):
        one.join()
    order = Order(number=2, kind="change", plan=FullPlan(""), incarnations={})
    transition = plan_transition(REPLICAS, REPLICAS)
    change = Change(order, REPLICAS, transition, building=bad, meeting=good, links=good)
    change.check(100.0)
    change.check(100.0 + PATIENCE_S / 2)
    with pytest.raises(GroupBroken, match="nobody came"):
        change.check(100.1 + PATIENCE_S)
