"""Planned changes that a failure catches half way: entered by all workers or by none."""

from itertools import product

import pytest
import torch.distributed as dist

from holdfast.control.order import FullPlan, Order
from holdfast.control.report import Member
from holdfast.engine.change_executor import ChangeExecutor
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.trainer import Trainer
from holdfast.errors import InternalError
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.text import format_plan
from support.sample import some
from support.threaded_job import ANY_STEP, Fault, ThreadedJob, assert_survives
from support.training import SMALL, Task

TASK = Task(num_steps=400)
"""At most: long enough for a change that is late."""
REPLICAS = regular_plan(TASK.units, replicas=3, micro_batches=4)
FIRST_LOSS = Fault("n0.g2", 2, "forward")


def survive(*faults, enough=ThreadedJob.are_back):
    lost = Fault(FIRST_LOSS.worker, FIRST_LOSS.step, FIRST_LOSS.phase)
    return assert_survives(ThreadedJob(TASK, REPLICAS, [lost, *faults], enough=enough))


@pytest.mark.parametrize(
    ("worker", "phase", "kind"),
    some(
        product(["n0.g0", "n0.g1"], ["switch", "entered"], ["die", "break"]),
        [  # every pair of two of these
            ("n0.g0", "switch", "die"),
            ("n0.g0", "entered", "break"),
            ("n0.g1", "switch", "break"),
            ("n0.g1", "entered", "die"),
        ],
    ),
)
def test_a_failure_in_the_middle_of_the_switch(worker, phase, kind):
    survive(Fault(worker, ANY_STEP, phase, kind))


def test_a_joiner_that_dies_before_the_first_unit():
    survive(Fault("n0.g2", ANY_STEP, "join", incarnation=2))


def test_a_joiner_that_dies_when_it_has_entered():
    survive(Fault("n0.g2", ANY_STEP, "entered", incarnation=2))


def test_a_joiner_whose_links_break_is_started_again():
    job = survive(Fault("n0.g2", ANY_STEP, "join", "break", incarnation=2))
    assert "n0.g2#3" in {str(member) for member, _ in job.changes}


def test_only_who_joins_is_given_anything():
    job = survive()
    entered = {str(member): report for member, report in job.changes}
    assert entered.keys() == {"n0.g0#1", "n0.g1#1", "n0.g2#2"}
    assert len({(report.step, report.epoch) for report in entered.values()}) == 1
    received = {name: report.bytes_received for name, report in entered.items()}
    assert received["n0.g0#1"] == received["n0.g1#1"] == 0
    assert received["n0.g2#2"] > 0


class Link:
    """To a coordinator that says one thing."""

    newest_freeze = 0

    def __init__(self, message):
        self.messages, self.states = [message], []

    def on_freeze(self, call):
        """It never freezes this worker."""

    def wait(self, timeout_s):
        return self.messages.pop() if self.messages else None

    def tell(self, state):
        self.states.append(state)


def test_a_worker_without_a_plan_and_a_source_cannot_join():
    incarnations = dict.fromkeys(REPLICAS.workers, 1)
    plan = FullPlan(format_plan(REPLICAS))
    link = Link(Order(number=2, kind="change", plan=plan, incarnations=incarnations))
    trainer = Trainer(
        Member("n0.g2", 1),
        model=LlamaModel(SMALL, seed=1),
        data=TASK.data,
        config=TrainerConfig(num_steps=3),
        store=dist.HashStore(),
        link=link,
    )
    with pytest.raises(InternalError, match=r"n0\.g2 joins without a source"):
        trainer.run()
    assert link.states[-1].pending == 2
    trainer.close()


class Failing:
    """A change whose groups cannot be made."""

    order = Order(number=2, kind="change", plan=FullPlan(""), incarnations={})
    why_closed = ""
    feeders = ()

    def failure(self):
        return "no peer came"

    def is_prepared(self, step):
        return False

    def close(self, why):
        self.why_closed = why


def test_a_change_that_cannot_be_prepared_is_said_and_dropped():
    changes, change = ChangeExecutor(None, None), Failing()
    assert changes.failure() is None
    assert not changes.is_prepared(0)
    changes._pending = change
    failed = changes.failure()
    assert (failed.number, failed.reason) == (2, "no peer came")
    changes.drop("void")
    assert change.why_closed == "void"
    assert changes.failure() is None
