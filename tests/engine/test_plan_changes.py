"""Planned changes that a failure catches half way: entered by all or by nobody."""

import pytest
import torch.distributed as dist

from holdfast.control.order import FullPlan, Order
from holdfast.control.report import Member
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.plan_changes import ChangingTrainer
from holdfast.errors import InternalError
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.text import format_plan
from support.threaded_job import ANY_STEP, Fault, ThreadedJob, assert_survives
from support.training import SMALL, Task

TASK = Task(num_steps=80)
"""Long enough for a change that is late."""
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


def test_only_who_joins_is_given_anything():
    job = survive()
    entered = {str(member): report for member, report in job.changes}
    assert entered.keys() == {"n0.g0#1", "n0.g1#1", "n0.g2#2"}
    assert len({(report.step, report.epoch) for report in entered.values()}) == 1
    received = {name: report.bytes_received for name, report in entered.items()}
    assert received["n0.g0#1"] == received["n0.g1#1"] == 0
    assert received["n0.g2#2"] > 0


class Link:
    """Of a worker that nobody speaks to."""

    newest_freeze = 0

    def on_freeze(self, call):
        """Nobody freezes it."""

    def tell(self, state):
        self.state = state


def test_who_has_no_plan_and_no_source_cannot_join():
    trainer = ChangingTrainer(
        Member("n0.g2", 1),
        model=LlamaModel(SMALL, seed=1),
        data=TASK.data,
        config=TrainerConfig(num_steps=3),
        store=dist.HashStore(),
        link=Link(),
    )
    incarnations = dict.fromkeys(REPLICAS.workers, 1)
    plan = FullPlan(format_plan(REPLICAS))
    order = Order(number=2, kind="change", plan=plan, incarnations=incarnations)
    with pytest.raises(InternalError, match=r"n0\.g2 joins, and nobody feeds it"):
        trainer._join(order, REPLICAS)
    assert trainer._link.state.pending == 2
    trainer.close()
