"""What a running job can go over to."""

import msgspec

from holdfast.plan.entering import why_not_entered, why_not_runnable
from holdfast.plan.plan import Schedule
from holdfast.plan.state import StateKind, StateSpec
from holdfast.plan.units import with_kinds
from support.plan_questions import home_plan


def test_any_plan_of_the_same_model_on_workers_that_are_there():
    now = home_plan()
    for target in (home_plan(tensor=1, replicas=3), home_plan(stages=2, tensor=1), now):
        assert why_not_entered(now, target, target.workers) == ""


def test_why_not():
    now = home_plan()
    few = home_plan(micro_batches=2)
    other = msgspec.structs.replace(now, units=now.units[:-1])
    by_hand = msgspec.structs.replace(now, schedule=Schedule("explicit"))
    assert "n0.g1 is not there" in why_not_entered(now, now, ["n0.g0", "n0.g2", "n0.g3"])
    assert "2 micro-batches a step, the job 4" in why_not_entered(now, few, few.workers)
    assert "another model" in why_not_entered(now, other, now.workers)
    assert "by hand" in why_not_entered(now, by_hand, now.workers)


def test_what_the_engine_does_not_run_is_not_entered():
    now = home_plan()
    sharded = msgspec.structs.replace(
        now,
        stages=tuple(msgspec.structs.replace(s, axes=(("context", 2),)) for s in now.stages),
    )
    assert "context degree 2" in why_not_runnable(sharded)
    assert why_not_entered(now, sharded, now.workers) == why_not_runnable(sharded)


def test_tensors_that_are_updated_whole_are_in_no_shards():
    now = home_plan()
    whole = StateSpec((StateKind("parameter", "float32"),), by_slice=False)
    units = with_kinds(now.units, lambda tensor: whole)
    stages = tuple(msgspec.structs.replace(s, axes=(("shard", s.tensor),)) for s in now.stages)
    sharded = msgspec.structs.replace(now, stages=stages)
    assert why_not_runnable(sharded) == ""
    assert why_not_runnable(msgspec.structs.replace(now, units=units)) == ""
    sharded = msgspec.structs.replace(sharded, units=units)
    assert "set shard = 1 or take AdamW" in why_not_runnable(sharded)
