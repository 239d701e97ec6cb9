"""Optimizers other than AdamW in whole jobs: with real groups, every worker a thread.

Whatever the plan, whatever is lost on the way and whatever the plan becomes, the run equals a plain
loop with torch's own optimizers, and all holders of a slice have the same bits.
"""

import random

import pytest

from holdfast.engine.optimizer_config import OptimizerConfig, TensorGroupRule
from holdfast.plan.build import regular_plan
from support.engine_plans import any_plan, make_plan, make_stage
from support.sample import some
from support.threaded_job import Fault, ThreadedJob, assert_survives
from support.training import TIED, Task

pytestmark = pytest.mark.slow

MUON = OptimizerConfig(
    name="Muon",
    learning_rate=0.02,
    warmup_steps=2,
    param_groups=(
        TensorGroupRule(tensors=("embed.*", "head.*"), name="AdamW", learning_rate=0.004),
        TensorGroupRule(tensors=("*.wo",), weight_decay=0.0),
    ),
)
GROUPS = OptimizerConfig(
    param_groups=(
        TensorGroupRule(tensors=("*norm*",), learning_rate=1e-3),
        TensorGroupRule(tensors=("block.1.*",), weight_decay=0.3),
    )
)
SGD = OptimizerConfig(name="SGD", learning_rate=0.1, momentum=0.8)
CONFIGS = {"muon": MUON, "groups": GROUPS, "sgd": SGD}


def plan_of(task, **degrees):
    return regular_plan(task.units, micro_batches=task.num_micro_batches, **degrees)


@pytest.mark.parametrize("name", CONFIGS)
def test_tensor_and_stages(name):
    task = Task(optimizer=CONFIGS[name])
    assert_survives(ThreadedJob(task, plan_of(task, stages=2, tensor=2)))


@pytest.mark.parametrize(
    "phase",
    some(["backward", "reduce 1", "reduced", "agree", "agreed", "apply"], ["agreed"]),
)
def test_muon_and_a_death_in_every_phase(phase):
    """Tensor 3 is uneven, and key-value heads lie on two workers."""
    task = Task(optimizer=MUON, num_steps=4)
    plan = plan_of(task, replicas=2, tensor=3)
    job = ThreadedJob(task, plan, [Fault("n0.g5", 1, phase)], restart=False)
    assert assert_survives(job).recoveries


def test_muon_comes_back_unit_by_unit():
    """Also to a worker whose sources are cut otherwise than it is."""
    task = Task(optimizer=MUON, num_steps=80, shape=TIED)
    plan = plan_of(task, replicas=2, tensor=2)
    job = ThreadedJob(task, plan, [Fault("n0.g3", 2, "backward")], enough=ThreadedJob.are_back)
    assert_survives(job)


@pytest.mark.chaos
def test_muon_from_plan_to_plan():
    task = Task(optimizer=MUON, num_steps=200)
    first = plan_of(task, stages=2, tensor=2)
    uneven = make_plan(
        task.units,
        [make_stage(0, 0, 0, 5, 0, 1, 2), make_stage(1, 0, 0, 5, 3)],
        [2, 2],
    )
    plans = [uneven, plan_of(task, replicas=2, stages=2)]
    job = ThreadedJob(
        task,
        first,
        wishes=[(3, plans[0]), (6, plans[1])],
        enough=lambda job: job._num_wished == 2 and job.runs(plans[1]),
    )
    assert_survives(job)


@pytest.mark.parametrize("number", some([1, 3], [1]))
def test_any_optimizer_over_any_plans(number):
    """Drawn anew every time."""
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(number):
        task = Task(optimizer=rng.choice([*CONFIGS.values()]), num_steps=200)
        first, second = (
            any_plan(rng.randint, task.units, task.num_micro_batches, 4) for _ in range(2)
        )
        job = ThreadedJob(
            task,
            first,
            wishes=[(2, second)],
            spares=tuple(w for w in second.workers if w not in first.workers),
            enough=lambda job, last=second: job._num_wished == 1 and job.runs(last),
        )
        assert_survives(job)
