"""When a planned change is ready, when it has failed, and what is left when it is given up."""

import threading

import pytest

from holdfast.control.order import FullPlan, Joiner, Order
from holdfast.engine.background import Background
from holdfast.engine.change import PendingChange
from holdfast.engine.groups import GroupBroken
from holdfast.plan.build import regular_plan
from holdfast.plan.feeding import UnitSource
from holdfast.plan.transition import plan_transition
from support.training import Task

PLAN = regular_plan(Task().units, replicas=3, micro_batches=4)
TRANSITION = plan_transition(PLAN, PLAN)
JOINERS = (Joiner("n0.g2", {0: (UnitSource("n0.g0"),)}),)


class Feeder:
    def __init__(self):
        self.current_at, self.why_closed = 5, ""

    def is_current(self, step):
        return step >= self.current_at

    def close(self, why):
        self.why_closed = why


def done(result=None):
    made = Background("done", lambda: result)
    made.join()
    return made


def failed():
    def fail():
        raise GroupBroken("no worker came")

    made = Background("failed", fail)
    made.join()
    return made


def make(building=None, meeting=None, links=None, builds_now=True, **order):
    building = building or done()
    return PendingChange(
        Order(number=2, kind="change", plan=FullPlan(""), incarnations={}, **order),
        PLAN,
        TRANSITION,
        build=lambda: building,
        builds_now=builds_now,
        meeting=meeting or done(),
        links=links or done([]),
    )


@pytest.fixture
def gate():
    """What is made behind it is ready when the test says so."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.mark.parametrize("late", ["building", "meeting", "links"])
def test_it_is_entered_when_all_is_made(gate, late):
    waiting = Background("late", lambda: gate.wait(30) and [])
    change = make(**{late: waiting})
    assert not change.is_prepared(0)
    assert change.feeders == []
    gate.set()
    waiting.join()
    assert change.is_prepared(0)


def test_and_when_every_worker_that_is_fed_is_current():
    feeder = Feeder()
    change = make(links=done([feeder]), joiners=JOINERS)
    assert not change.is_prepared(4)
    assert change.is_prepared(5)


@pytest.mark.parametrize("bad", ["building", "meeting", "links"])
def test_one_that_cannot_be_prepared_says_why(bad):
    assert make(**{bad: failed()}).failure() == "no worker came"
    assert make().failure() == ""


def test_when_it_is_given_up_no_worker_is_fed_any_more():
    feeder = Feeder()
    make(links=done([feeder]), joiners=JOINERS).close("void")
    assert feeder.why_closed == "void"


def test_groups_that_cannot_be_made_beside_training_are_made_at_the_switch():
    begun = []

    def build():
        begun.append(1)
        return done("mesh")

    order = Order(number=2, kind="change", plan=FullPlan(""), incarnations={})
    parts = {"meeting": done(), "links": done([])}
    change = PendingChange(order, PLAN, TRANSITION, build=build, builds_now=False, **parts)
    assert change.is_prepared(1)
    assert begun == []
    assert [change.building().result(), change.building().result()] == ["mesh", "mesh"]
    assert begun == [1]
