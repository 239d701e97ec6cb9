"""Any plan can be entered from any other: with real workers, in one process, while they train.

Whatever the two plans are, the run equals the plain loop of `reference/`, and all holders of a
slice have the same bits in every step.
"""

import random

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.without_workers import without_workers
from support.engine_plans import any_plan, make_plan, make_stage
from support.sample import some
from support.threaded_job import ANY_STEP, Fault, ThreadedJob, assert_survives
from support.training import TIED, Task

TASK = Task(num_steps=200)
UNITS = TASK.units
SEEDS = (1, 2)
"""One model and the other."""


def go_over(plan, *plans, faults=(), spares=(), task=TASK, **more):
    """Every plan is wanted two steps after the one before it is, until the last one runs."""
    wishes = [(3 * number, wanted) for number, wanted in enumerate(plans, 1)]
    job = ThreadedJob(
        task,
        plan,
        faults,
        wishes=wishes,
        spares=spares,
        enough=lambda job: job._num_wished == len(plans) and job.runs(plans[-1]),
        **more,
    )
    return assert_survives(job)


def replicas_of(*degrees, lost=()):
    """One stage each, on that many workers of their own; those lost are left out."""
    stages, first = [], 0
    for replica, degree in enumerate(degrees):
        workers = [n for n in range(first, first + degree) if n not in lost]
        stages.append(make_stage(replica, 0, 0, len(UNITS), *workers))
        first += degree
    share, more = divmod(TASK.num_micro_batches, len(degrees))
    return make_plan(UNITS, stages, [share + (n < more) for n in range(len(degrees))])


@pytest.mark.parametrize("degree", some([2, 3, 4], [3]))
def test_a_tensor_group_goes_on_with_a_member_less(degree):
    """Its healthy members take their places with one rank less, evenly or not."""
    full = replicas_of(degree, degree)
    lost = 2 * degree - 1
    left = replicas_of(degree, degree, lost=(lost,))
    job = go_over(full, left, faults=[Fault(f"n0.g{lost}", 1, "backward")], restart=False)
    assert [len(stage.workers) for stage in job.coordinator.view.plan.stages] == [
        degree,
        degree - 1,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(8), SEEDS))
def test_three_random_plans_one_after_the_other(seed):
    pick = random.Random(seed).randint
    task = Task(num_steps=200, shape=(Task().shape, TIED)[seed % 2])
    plans = [any_plan(pick, task.units, 4, max_workers=5, base=pick(0, 1)) for _ in range(3)]
    workers = dict.fromkeys(name for plan in plans for name in plan.workers)
    spares = tuple(name for name in workers if name not in plans[0].seats)
    go_over(*plans, spares=spares, task=task)


def can_lose(plan, worker):
    try:
        return bool(without_workers(plan, [worker])[0].stages)
    except HoldfastError:
        return False


def draw_change(pick, task):
    """Two plans, and a worker that either can do without."""
    for _ in range(100):
        plans = [any_plan(pick, task.units, 4, max_workers=5, base=pick(0, 1)) for _ in range(2)]
        workers = dict.fromkeys(name for plan in plans for name in plan.workers)
        able = [w for w in workers if all(w not in p.seats or can_lose(p, w) for p in plans)]
        if able and plans[0] != plans[1]:
            return *plans, able[pick(0, len(able) - 1)]
    raise AssertionError("a hundred pairs of plans in a row cannot lose any worker")


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(8), SEEDS))
def test_a_worker_or_the_coordinator_is_lost_on_the_way(seed):
    """A worker dies or loses its links when it joins, goes over or has gone over, and the
    coordinator is lost at some point of its journal.
    """
    pick = random.Random(seed).randint
    task = Task(num_steps=200, shape=(Task().shape, TIED)[seed % 2])
    before, after, victim = draw_change(pick, task)
    spares = tuple(name for name in after.workers if name not in before.seats)
    phase = "join" if victim in spares and pick(0, 1) else ("switch", "entered")[pick(0, 1)]
    if phase == "switch" and victim in spares:
        phase = "entered"
    fault = Fault(victim, ANY_STEP, phase, ("die", "break")[pick(0, 1)])
    crash_at = pick(0, 1) * pick(8, 20)
    go_over(before, after, faults=[fault], spares=spares, task=task, crash_at=crash_at)
