"""Shard groups at work: real workers, in one process. Whatever the plan, the run equals the plain
loop of `reference/`, and all holders of a slice have the same bits in every step.
"""

import os
import random

import pytest

from holdfast.engine.shard_plan import plan_gathers, plan_scatters
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Schedule
from support.engine_plans import any_plan, make_plan, make_stage, named
from support.sample import some
from support.threaded_job import Fault, ThreadedJob, assert_survives
from support.training import TIED, Task

PHASES = ("forward", "backward", "reduce 1", "reduce 2", "reduced", "agree", "agreed", "apply")


def regular(task, schedule="1f1b", **degrees):
    count = 1
    for name in ("replicas", "stages", "tensor", "shard"):
        count *= degrees.get(name, 1)
    return regular_plan(
        task.units,
        micro_batches=task.num_micro_batches,
        workers=named(*range(count)),
        schedule=schedule,
        **degrees,
    )


def go(plan, *more, task, faults=(), spares=()):
    """Every plan is wanted some steps after the one before it."""
    wishes = [(3 * number, wanted) for number, wanted in enumerate(more, 1)]
    job = ThreadedJob(
        task,
        plan,
        faults,
        wishes=wishes,
        spares=spares,
        enough=lambda job: bool(more) and job._num_wished == len(more) and job.runs(more[-1]),
    )
    return assert_survives(job)


def drawn(seed, max_workers=6):
    """A task, and a plan with a shard group."""
    pick = random.Random(seed).randint
    task = Task(num_steps=3, shape=(Task().shape, TIED)[seed % 2])
    while True:
        plan = any_plan(pick, task.units, task.num_micro_batches, max_workers)
        if any(stage.shard > 1 for stage in plan.stages):
            return task, plan


def fresh_seed():
    seed = int(os.environ.get("HOLDFAST_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"HOLDFAST_CHAOS_SEED={seed}")
    return seed


def test_without_a_shard_axis_there_is_nothing_to_gather():
    class Nothing:
        sharded, buckets = {}, {}
        plan, worker = regular(Task()), "n0.g9"

    assert plan_gathers(Nothing(), None, ()) is None
    assert plan_scatters(Nothing(), None) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "degrees"),
    [
        (Schedule("1f1b", reshard="after_forward", recompute=True), {"shard": 2, "stages": 2}),
        ("zero-bubble", {"shard": 3, "replicas": 2}),
        ("1f1b", {"shard": 2, "tensor": 2}),
    ],
    ids=str,
)
def test_a_run_equals_the_plain_loop(schedule, degrees):
    task = Task(num_steps=3, shape=TIED)
    go(regular(task, schedule, **degrees), task=task)


@pytest.mark.slow
def test_a_random_plan_equals_the_plain_loop():
    task, plan = drawn(fresh_seed())
    go(plan, task=task)


@pytest.mark.slow
@pytest.mark.parametrize("phase", some(["backward", "reduce 2"], ["reduce 2"]))
def test_a_member_of_a_shard_group_is_lost(phase):
    task = Task(num_steps=5)
    go(regular(task, replicas=2, shard=2), task=task, faults=[Fault("n0.g1", 1, phase)])


@pytest.mark.slow
def test_a_shard_group_goes_on_with_a_member_less_and_as_a_tensor_group():
    task = Task(num_steps=200)
    wide, whole = (
        make_stage(0, 0, 0, len(task.units), 0, 1, 2, shard=3),
        make_stage(1, 0, 0, len(task.units), 3),
    )
    less = make_stage(0, 0, 0, len(task.units), 0, 1, shard=2)
    tensor = make_stage(0, 0, 0, len(task.units), 0, 1)
    plans = [make_plan(task.units, [stage, whole], [3, 1]) for stage in (wide, less, tensor)]
    go(*plans, task=task)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_thirty_random_plans_equal_the_plain_loop():
    seed = fresh_seed()
    for number in range(30):
        task, plan = drawn(seed + number)
        go(plan, task=task)


@pytest.mark.chaos
@pytest.mark.parametrize("shard", [2, 3])
@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_every_phase(phase, shard):
    task = Task(num_steps=5, shape=TIED)
    source = random.Random(fresh_seed())
    victim = f"n0.g{shard * source.randrange(2) + source.randrange(2)}"  # one with micro-batches
    go(regular(task, replicas=2, shard=shard), task=task, faults=[Fault(victim, 1, phase)])


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", range(6))
def test_random_plans_one_after_the_other(number):
    seed = fresh_seed() + 100 * number
    plans = [drawn(2 * (seed + n), 5)[1] for n in range(3)]
    workers = dict.fromkeys(name for plan in plans for name in plan.workers)
    spares = tuple(name for name in workers if name not in plans[0].seats)
    go(*plans, task=Task(num_steps=200), spares=spares)
