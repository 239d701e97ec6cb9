"""A list of plans as orders."""

import pytest

from holdfast.control.effects import Leave, Stop
from holdfast.control.report import Member
from holdfast.control.worker_position import WorkerPosition
from holdfast.control.worker_reports import Planned
from holdfast.engine.groups import GroupBroken
from holdfast.engine.scripted import ScriptedLink
from holdfast.plan.build import regular_plan
from support.training import Task

UNITS = Task().units
ONE = regular_plan(UNITS, micro_batches=2)
TWO = regular_plan(UNITS, replicas=2, micro_batches=2)


class Listener:
    stop = False

    def step_done(self, report):
        pass

    def plan_changed(self, report):
        pass

    def stop_requested(self):
        return self.stop


def link(worker, *plans, num_steps=10):
    return ScriptedLink(worker, [Planned(s, p) for s, p in plans], num_steps, Listener())


def enter(script, position, order):
    position.enter(order)
    script.tell(position.state())


def test_every_order_comes_when_the_one_before_is_entered():
    script, position = link("n0.g0", (0, ONE), (4, TWO)), WorkerPosition(Member("n0.g0", 1))
    start = script.wait(0)
    assert (start.kind, start.number, start.at_step) == ("start", 1, 0)
    assert script.wait(0) is None
    enter(script, position, start)
    change = script.wait(0)
    assert (change.kind, change.number, change.at_step) == ("change", 2, 4)
    script.finished(10)
    assert script.wait(0) == Leave()


def test_a_plan_after_the_last_step_is_left_out():
    script, position = link("n0.g0", (0, ONE), (10, TWO)), WorkerPosition(Member("n0.g0", 1))
    enter(script, position, script.wait(0))
    assert script.wait(0) is None


def test_who_will_never_have_a_role_may_leave():
    script, position = link("n0.g1", (0, ONE)), WorkerPosition(Member("n0.g1", 1))
    enter(script, position, script.wait(0))
    assert script.wait(0) == Leave()


def test_a_stop_is_passed_on_once():
    script, position = link("n0.g0", (0, ONE)), WorkerPosition(Member("n0.g0", 1))
    script._listener.stop = True
    enter(script, position, script.wait(0))
    assert script.wait(0) == Stop()
    assert script.wait(0) is None


def test_a_broken_group_ends_the_run():
    script, position = link("n0.g0", (0, ONE)), WorkerPosition(Member("n0.g0", 1))
    position.on_broken("a peer is gone")
    with pytest.raises(GroupBroken, match="a peer is gone"):
        script.tell(position.state())
