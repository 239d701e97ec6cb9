"""Being interrupted, from another thread, wherever the worker is."""

import threading

import pytest
import torch.distributed as dist

from holdfast.control.order import Freeze
from holdfast.control.report import Member
from holdfast.control.worker_commands import Quiesce
from holdfast.control.worker_position import WorkerPosition
from holdfast.engine.background import Background
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.groups import GroupBroken
from holdfast.engine.worker_groups import WorkerGroups
from holdfast.plan.build import regular_plan
from support.training import Task

PLAN = regular_plan(Task().units, replicas=3, micro_batches=3)


class Link:
    newest_freeze = 0
    call = None

    def on_freeze(self, call):
        self.call = call


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def groups(link):
    config = TrainerConfig(num_steps=3, timeout_ms=20_000)
    made = WorkerGroups(WorkerPosition(Member("n0.g0", 1)), config, dist.HashStore(), link)
    yield made
    made.close()


def test_a_freeze_ends_the_wait_for_peers_that_never_come(groups, link):
    building = groups.build(PLAN, 1)
    link.newest_freeze = 2
    link.call(Freeze(2, "round 2"))
    with pytest.raises(GroupBroken, match="frozen by round 2"):
        groups.wait_for(building)


def test_a_freeze_that_comes_while_groups_are_given_up_is_not_missed(groups, link):
    link.newest_freeze = 2
    with pytest.raises(GroupBroken, match="frozen by round 2"):
        groups.renew()
    assert groups.communicator.woken


def test_groups_that_were_given_up_are_made_anew(groups):
    old = groups.communicator
    groups.renew()
    assert groups.communicator is old, "there is nothing to give up"
    groups.interrupt(Freeze(2, "a peer is gone"))
    with pytest.raises(GroupBroken, match="a peer is gone"):
        groups.check()
    groups.renew_if_woken()
    assert groups.communicator is not old
    groups.check()


def test_what_is_made_is_given(groups):
    assert groups.wait_for(Background("three", lambda: 3)) == 3


def test_a_group_that_does_not_end_does_not_keep_its_worker(groups, monkeypatch):
    lets_go = threading.Event()
    monkeypatch.setattr(groups.communicator, "close_all", lets_go.wait)
    monkeypatch.setattr("holdfast.engine.worker_groups._CLOSING_S", 0.01)
    groups.close()
    assert not lets_go.is_set()
    lets_go.set()


@pytest.fixture
def of_device(groups, monkeypatch):
    """As of a worker whose groups go over NCCL."""
    monkeypatch.setattr(type(groups.communicator), "connects_beside_training", False)
    return groups


def test_a_group_of_a_device_that_breaks_before_the_freeze_costs_no_other(of_device, link):
    link.newest_freeze = 2
    assert of_device.quiesce(Quiesce("a peer is gone", is_frozen=False)) is None
    assert not of_device.communicator.woken


def test_without_a_freeze_a_device_gives_its_groups_up(of_device, monkeypatch):
    monkeypatch.setattr("holdfast.engine.worker_groups._FREEZE_S", 0.0)
    assert of_device.quiesce(Quiesce("a peer is gone", is_frozen=False)) == {}
    assert of_device.communicator.woken == "a peer is gone"
