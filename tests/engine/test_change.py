"""When a planned change is ready, when it has failed, and what is left when it is given up."""

import threading

import pytest
import torch

from holdfast.control.order import FullPlan, Joiner, Order
from holdfast.engine.background import Background
from holdfast.engine.change import PendingChange, prepare_change
from holdfast.engine.epoch import LiveEpoch
from holdfast.engine.groups import GroupBroken
from holdfast.engine.mesh import Mesh
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


def make(building=None, state=None, meeting=None, links=None, **order):
    building = building or done()
    return PendingChange(
        Order(number=2, kind="change", plan=FullPlan(""), incarnations={}, **order),
        PLAN,
        TRANSITION,
        build=lambda: building,
        make_state=state.result if state else None,
        builds_now=True,
        meeting=meeting or done(),
        links=links or done([]),
    )


@pytest.fixture
def gate():
    """What is made behind it is ready when the test says so."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.mark.parametrize("late", ["building", "state", "meeting", "links"])
def test_it_is_entered_when_all_is_made(gate, late):
    waiting = Background("late", lambda: gate.wait(30) and [])
    change = make(**{late: waiting})
    assert not change.is_prepared(0)
    assert change.feeders == []
    gate.set()
    for background in change._under_way:
        background.join()
    assert change.is_prepared(0)


def test_and_when_every_worker_that_is_fed_is_current():
    feeder = Feeder()
    change = make(links=done([feeder]), joiners=JOINERS)
    assert not change.is_prepared(4)
    assert change.is_prepared(5)


@pytest.mark.parametrize("bad", ["building", "state", "meeting", "links"])
def test_one_that_cannot_be_prepared_says_why(bad):
    change = make(**{bad: failed()})
    for background in change._under_way:
        background.join()
    assert change.failure() == "no worker came"
    assert make().failure() == ""


def test_when_it_is_given_up_no_worker_is_fed_any_more():
    feeder = Feeder()
    make(links=done([feeder]), joiners=JOINERS).close("void")
    assert feeder.why_closed == "void"


@pytest.mark.parametrize(
    ("builds_now", "makes_now"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_what_cannot_be_made_beside_training_is_made_at_the_switch(builds_now, makes_now):
    begun = []

    def make_one(name):
        begun.append(name)
        return name

    change = PendingChange(
        Order(number=2, kind="change", plan=FullPlan(""), incarnations={}),
        PLAN,
        TRANSITION,
        build=lambda: done(make_one("mesh")),
        make_state=lambda: make_one("state"),
        builds_now=builds_now,
        makes_now=makes_now,
        meeting=done(),
        links=done([]),
    )
    for background in change._under_way:
        background.join()
    assert change.is_prepared(1)
    assert begun == builds_now * ["mesh"] + makes_now * ["state"]
    assert [change.building().result(), change.building().result()] == ["mesh", "mesh"]
    assert change.new_state() == "state"
    assert sorted(begun) == ["mesh", "state"]


class Alone:
    """A communicator whose groups have no other members."""

    worker, connects_beside_training = "n0.g0", True

    def make(self, kind, members, number):
        return self

    def warm_up(self):
        pass


class Maker:
    """What makes state, on some device."""

    def __init__(self, device):
        self.device, self.made = torch.device(device), []

    def new_state(self, plan):
        self.made.append(plan)
        return None, {}


@pytest.mark.parametrize(("keeps", "device"), [(True, "cpu"), (False, "cpu"), (False, "cuda")])
def test_who_keeps_its_seats_and_gives_nothing_makes_no_state(monkeypatch, keeps, device):
    """All others have theirs before the switch, unless a device has to have room for it."""
    monkeypatch.setattr("holdfast.engine.change.make_mesh", lambda *args, **options: None)
    before = regular_plan(Task().units, replicas=2, micro_batches=4)
    split = regular_plan(Task().units, stages=2, micro_batches=4)
    after = before if keeps else split
    maker = Maker(device)
    order = Order(number=2, kind="change", plan=FullPlan(""), incarnations={})
    epoch = LiveEpoch(1, before, Mesh(before, 1, {}, 0))
    change = prepare_change(order, after, epoch, Alone(), maker)
    for background in change._under_way:
        background.join()
    assert change.is_prepared(1)
    assert maker.made == ([] if keeps or device == "cuda" else [split])
    assert (change.new_state() is None) == keeps
    assert maker.made == ([] if keeps else [split])
