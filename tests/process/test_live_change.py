"""A run that changes its plan on the way equals the run that never did.

Every case is compared with the plain loop of `reference/`, as if nothing had happened. What a
change costs is known beforehand: the bytes that move are those of the transition, and groups whose
members stay are the same objects after it.
"""

import random
from dataclasses import replace
from itertools import pairwise
from math import prod

import pytest

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.plan.build import regular_plan
from holdfast.plan.groups import plan_groups
from holdfast.plan.plan import Hop
from holdfast.plan.state import adamw_state
from holdfast.plan.transition import plan_transition
from holdfast.plan.units import box_size
from support.engine_plans import any_plan, make_plan, make_stage, named
from support.sample import some
from support.training import TIED, Task, assert_equal_to_reference, run_training, train_when_told

pytestmark = [pytest.mark.process, pytest.mark.slow]

TASK = Task(num_steps=6)
UNITS = TASK.units
USED = ("tensor", "shard", "scatter", "reduce", "all", "link")


def regular(task=TASK, first=0, **degrees):
    count = prod(degrees.get(name, 1) for name in ("replicas", "stages", "shard", "tensor"))
    workers = named(*range(first, first + count))
    return regular_plan(
        task.units, micro_batches=task.num_micro_batches, workers=workers, **degrees
    )


def check(cluster, task, plans):
    """Run the plans one after the other, two steps each."""
    run = run_training(cluster, task, [(2 * n, plan) for n, plan in enumerate(plans)])
    for line in check_changes(run):
        print(line)
    assert_equal_to_reference(run)
    return run


def check_changes(run):
    """What every change did is what its transition says; one line about each."""
    lines = []
    for epoch, (before, after) in enumerate(pairwise(run.plans), 1):
        concerned = {*before.plan.workers, *after.plan.workers}
        told, same = {}, {}
        for worker in concerned:
            result = run.workers[worker]
            (at,) = [n for n, change in enumerate(result.changes) if change.epoch == epoch]
            told[worker], same[worker] = result.changes[at], result.same_objects[at]
        assert {(c.step, c.epoch) for c in told.values()} == {(after.at_step, epoch)}
        moved = bytes_by_target(before.plan, after.plan, run.task.dtype)
        assert {w: c.bytes_received for w, c in told.items() if c.bytes_received} == moved
        num_kept = num_made = 0
        for worker, change in told.items():
            old, new = groups_of(before.plan, worker), groups_of(after.plan, worker)
            assert same[worker] == old & new
            assert change.num_groups_kept == len(old & new)
            assert change.num_groups_made == len(new - old)
            num_kept, num_made = num_kept + len(old & new), num_made + len(new - old)
        stall_ms = max(change.stall_s for change in told.values()) * 1e3
        lines.append(
            f"step {after.at_step}: stalled {stall_ms:.0f} ms, {sum(moved.values()) / 1e3:.1f} kB "
            f"moved, {num_kept} memberships in groups survived, {num_made} are new"
        )
    return lines


def bytes_by_target(old, new, dtype):
    moved = {}
    for move in plan_transition(old, new).moves:
        size = box_size(move.box) * adamw_state(dtype).element_bytes
        moved[move.target] = moved.get(move.target, 0) + size
    return moved


def groups_of(plan, worker):
    """(kind, members) of the groups the engine uses; gloo needs one link for both directions."""
    return {
        (group.kind, tuple(sorted(group.members)) if group.kind == "link" else group.members)
        for group in plan_groups(plan)
        if group.kind in USED and worker in group.members
    }


TWO_BY_TWO = regular(replicas=2, stages=2)
LOST = make_plan(
    UNITS,
    [stage for stage in TWO_BY_TWO.stages if stage.name != "r0.s1"],
    routes=[
        (Hop("r0.s0", 0, 2), Hop("r1.s1", 2, 5)),
        (Hop("r0.s0", 0, 2), Hop("r1.s1", 2, 5)),
        (Hop("r1.s0", 0, 2), Hop("r1.s1", 2, 5)),
        (Hop("r1.s0", 0, 2), Hop("r1.s1", 2, 5)),
    ],
)
CROSSED = make_plan(
    UNITS,
    TWO_BY_TWO.stages,
    routes=[
        (Hop("r0.s0", 0, 2), Hop("r1.s1", 2, 5)),
        (Hop("r0.s0", 0, 2), Hop("r0.s1", 2, 5)),
        (Hop("r1.s0", 0, 1), Hop("r0.s0", 1, 2), Hop("r1.s1", 2, 5)),
        (Hop("r1.s0", 0, 2), Hop("r1.s1", 2, 5)),
    ],
    schedule="gpipe",
)
DEEPER = make_plan(
    UNITS,
    [
        make_stage(0, 0, 0, 3, 0),
        make_stage(0, 1, 3, 5, 1),
        make_stage(1, 0, 0, 1, 2),
        make_stage(1, 1, 1, 3, 3),
        make_stage(1, 2, 3, 5, 4),
    ],
    [2, 2],
)

WALKS = {
    "units split anew": [
        regular(stages=2, split=[3, 2]),
        regular(stages=2, split=[1, 4]),
        regular(stages=2, split=[2, 3]),
    ],
    "replicas 2, 1, 2": [regular(replicas=2), regular(), regular(replicas=2)],
    "tensor 2, 1, 3": [regular(tensor=2), regular(), regular(tensor=3)],
    "tensor 3, 2 in place": [regular(tensor=3), regular(tensor=2), regular(tensor=3)],
    "shard 3, 2, and a second replica": [
        regular(shard=3),
        regular(shard=2),
        regular(replicas=2, shard=2),
    ],
    "a stage is lost and returns": [TWO_BY_TWO, LOST, TWO_BY_TWO],
    "rerouted and back": [TWO_BY_TWO, CROSSED, TWO_BY_TWO],
    "different depth": [regular(stages=2), DEEPER, regular(replicas=2, stages=2)],
    "pipe to replicas of tensor 2": [regular(stages=4), regular(replicas=2, tensor=2)],
    "all move house": [regular(stages=2), regular(first=2, stages=2), regular(stages=2)],
    "a redundant copy comes and goes": [
        regular(stages=2),
        make_plan(UNITS, [*regular(stages=2).stages, make_stage(1, 0, 2, 5, 0)], [4]),
        regular(),
    ],
    "another schedule": [regular(stages=2), regular(stages=2, schedule="zero-bubble")],
    "virtual stages and back": [
        regular(stages=2),
        regular(stages=2, virtual=2, schedule="interleaved"),
        regular(stages=2),
    ],
}


@pytest.mark.parametrize("plans", WALKS.values(), ids=WALKS.keys())
def test_changes(cluster, plans):
    check(cluster, TASK, plans)


def test_nothing_moves_and_all_groups_live_on_where_only_the_order_changes(cluster):
    run = check(cluster, TASK, WALKS["another schedule"])
    for told in run.workers.values():
        (change,) = told.changes
        assert change.bytes_received == 0
        assert (change.num_groups_kept, change.num_groups_made) == (2, 0)


def test_groups_of_those_who_stay_live_on(cluster):
    """A replica leaves and returns: inside the other one nothing is made anew but `all`."""
    alone = regular(stages=2, tensor=2)
    both = regular(replicas=2, stages=2, tensor=2)
    run = check(cluster, TASK, [both, alone, both])
    for worker in alone.workers:
        gone, back = run.workers[worker].same_objects
        assert {kind for kind, _ in gone} == {kind for kind, _ in back} == {"tensor", "link"}


@pytest.mark.parametrize(
    "plans",
    [
        [{"stages": 2}, {"stages": 4}, {"replicas": 2, "stages": 2}],
        [{"tensor": 2}, {"stages": 2, "tensor": 2}, {"tensor": 3}],
    ],
    ids=["stages", "tensor"],
)
def test_tied_embeddings_move_too(cluster, plans):
    task = replace(TASK, shape=TIED)
    check(cluster, task, [regular(task, **degrees) for degrees in plans])


def test_dropout_and_lengths_do_not_notice(cluster):
    task = replace(TASK, dropout=0.1, shortest=3)
    check(cluster, task, [regular(task, stages=2), regular(task, replicas=2, tensor=2)])


def test_float32(cluster):
    optimizer = OptimizerConfig(learning_rate=3e-4, eps=1e-5)
    task = replace(TASK, num_steps=4, dtype="float32", optimizer=optimizer)
    check(cluster, task, [regular(task, replicas=2), regular(task, stages=2, tensor=2)])


def test_a_change_at_every_step_and_one_that_never_comes(cluster):
    plans = [regular(stages=2), regular(replicas=2), regular(tensor=2), regular(stages=3)]
    task = replace(TASK, num_steps=3)
    run = run_training(cluster, task, list(enumerate(plans)))
    assert_equal_to_reference(run)
    assert run.workers["n0.g2"].steps == []


def test_training_goes_on_while_a_newcomer_is_not_there_yet(cluster):
    """Its groups are made beside the training: it starts when the others have done two steps."""
    run = run_training(
        cluster,
        TASK,
        [(0, regular()), (3, regular(replicas=2))],
        work=train_when_told,
    )
    check_changes(run)
    assert_equal_to_reference(run)
    assert [report.step for report in run.workers["n0.g1"].steps] == [3, 4, 5]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", some([1, 2], [1]))
def test_a_walk_over_ten_random_plans(cluster, seed):
    pick = random.Random(seed).randint
    task = replace(TASK, num_steps=20, shape=(TASK.shape, TIED)[seed % 2])
    plans = [
        any_plan(pick, task.units, task.num_micro_batches, max_workers=4, base=pick(0, 2))
        for _ in range(10)
    ]
    check(cluster, task, plans)
