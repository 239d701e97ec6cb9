import msgspec
import pytest

from holdfast.observe.plan_diff import (
    describe_changes,
    describe_transition,
    sorted_workers,
    transition_numbers,
)
from holdfast.plan.plan import Limits
from holdfast.plan.transition import plan_transition
from support.timelines import rerouted_plan, small_plan, with_schedule


def test_equal_plans():
    plan = small_plan()
    assert describe_changes(plan, small_plan()) == []
    lines = describe_transition(plan_transition(plan, plan), plan)
    assert lines[0] == "no state has to move"
    assert "0 new" in lines[1]


def test_a_lost_stage():
    old, new = small_plan(), rerouted_plan()
    assert describe_changes(old, new) == [
        "r0.s1 (units 2-4 on n0.g1) is gone",
        "micro-batches 0-7 take r0.s0 r1.s1 r0.s2 r0.s3 instead of r0",
    ]
    lines = describe_transition(plan_transition(old, new), new)
    assert lines[:2] == ["n0.g1 leaves", "no state has to move"]


def test_a_stage_that_comes_back():
    old, new = rerouted_plan(), small_plan()
    assert describe_changes(old, new)[0] == "r0.s1 (units 2-4 on n0.g1) is new"
    transition = plan_transition(old, new)
    lines = describe_transition(transition, new)
    assert lines[0] == "n0.g1 joins"
    assert "of parameters and optimizer state move in" in lines[1]
    assert lines[2].startswith("  n0.g1 (r0.s1) gets ")
    assert lines[2].endswith("from n0.g5")
    numbers = transition_numbers(transition)
    assert numbers["joining"] == ["n0.g1"]
    assert numbers["moves"] == [
        {"source": "n0.g5", "target": "n0.g1", "num_bytes": transition.num_bytes}
    ]


def test_units_workers_and_degrees_that_changed():
    old = small_plan(replicas=1, tensor=2)
    new = small_plan(replicas=1, tensor=1, split=[2, 2, 3, 3])
    lines = describe_changes(old, new)
    assert lines[0] == "r0.s0: workers n0.g0-1 -> n0.g0, tensor 2 -> 1"
    assert lines[1] == "r0.s1: units 2-4 -> 2-3, workers n0.g2-3 -> n0.g1, tensor 2 -> 1"


def test_other_micro_batches():
    lines = describe_changes(small_plan(), small_plan(micro_batches=8))
    assert lines[0] == "8 micro-batches a step instead of 16: another batch, so another loss curve"
    assert lines[1] == "micro-batches 4-7 take r1 instead of r0"


def test_schedule_and_limits():
    old = small_plan()
    new = msgspec.structs.replace(
        with_schedule(old, kind="gpipe", recompute=True), limits=Limits(device_bytes=5)
    )
    assert describe_changes(old, new) == [
        "schedule: kind 1f1b -> gpipe",
        "schedule: recompute False -> True",
        "limits: device_bytes 0 -> 5",
    ]


def test_lines_of_a_schedule_are_counted_not_printed():
    old = small_plan(replicas=1, stages=1, micro_batches=1)
    new = with_schedule(old, kind="explicit", orders=(("n0.g0", "F0 B0"),))
    assert "schedule: orders by rule -> of 1 workers" in describe_changes(old, new)


@pytest.mark.parametrize("drop", [0, 1])
def test_another_model(drop):
    old = small_plan()
    units = (
        old.units[drop:]
        if drop
        else (*old.units[:-1], msgspec.structs.replace(old.units[-1], forward=9.0))
    )
    (line, *_) = describe_changes(old, msgspec.structs.replace(old, units=units))
    assert "units" in line


def test_long_lists_are_counted():
    lines = describe_changes(small_plan(), small_plan(replicas=8, micro_batches=16))
    assert sum("is new" in line for line in lines) == 8
    assert "... and 16 more like these" in lines


def test_workers_are_sorted_as_numbers():
    assert sorted_workers(["n10.g0", "n2.g1", "n2.g0"]) == ["n2.g0", "n2.g1", "n10.g0"]
