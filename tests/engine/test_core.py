"""Being interrupted, from another thread, wherever the worker is."""

import pytest
import torch.distributed as dist

from holdfast.control.report import Member
from holdfast.engine.background import Background
from holdfast.engine.core import TrainerCore
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.groups import GroupBroken
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from support.training import SMALL, Task

TASK = Task()
PLAN = regular_plan(TASK.units, replicas=3, micro_batches=3)


class Link:
    newest_freeze = 0
    call = None

    def on_freeze(self, call):
        self.call = call


@pytest.fixture
def core():
    made = TrainerCore(
        Member("n0.g0", 1),
        model=LlamaModel(SMALL, seed=1),
        data=TASK.data,
        config=TrainerConfig(num_steps=3, timeout_ms=20_000),
        store=dist.HashStore(),
        link=Link(),
    )
    yield made
    made.close()


def test_a_freeze_ends_the_wait_for_peers_that_never_come(core):
    building = core._build(PLAN, 1)
    core._link.newest_freeze = 2
    core._link.call("round 2")
    with pytest.raises(GroupBroken, match="frozen by round 2"):
        core._await(building)


def test_a_freeze_that_comes_while_groups_are_given_up_is_not_overheard(core):
    core._link.newest_freeze = 2
    with pytest.raises(GroupBroken, match="frozen by round 2"):
        core._renew()
    assert core.communicator.woken


def test_what_is_made_is_given(core):
    assert core._await(Background("three", lambda: 3)) == 3
