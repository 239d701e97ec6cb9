"""The text of a plan can be read, edited and parsed back to the same plan."""

import msgspec
import pytest
from hypothesis import given, settings

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.lanes import layout_of
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.plan import Hop, Limits, Plan, Schedule, Stage, StateBytes
from holdfast.plan.text import format_plan, parse_plan
from holdfast.schedule.orders import compute_orders
from support.explicit_orders import format_orders
from support.random_plans import make_units, plans

replace = msgspec.structs.replace


@settings(max_examples=200)
@given(plans)
def test_round_trip(plan: Plan) -> None:
    assert parse_plan(format_plan(plan)) == plan


@settings(max_examples=40)
@given(plans)
def test_round_trip_with_explicit_lines_and_limits(plan: Plan) -> None:
    layout = layout_of(plan)
    orders = format_orders(layout, compute_orders(layout))
    changed = replace(
        plan,
        schedule=Schedule("explicit", orders=orders),
        limits=Limits(device_bytes=10**11, groups_per_worker=64),
        state_bytes=StateBytes(4, 4, 8),
    )
    assert parse_plan(format_plan(changed)) == changed
    slow = replace(plan, schedule=replace(plan.schedule, slow=(("n0.g0", 1.5), ("n9.g1", 3.0))))
    assert parse_plan(format_plan(slow)) == slow


def test_a_large_regular_plan_stays_small() -> None:
    units = llama_units(llama_shape("llama-70b"))
    plan = regular_plan(
        units, replicas=12, stages=16, tensor=8, shard=64, micro_batches=768, split="cost"
    )
    assert len(plan.workers) == 98_304
    text = format_plan(plan)
    assert len(text) < 3000
    assert 'workers = "n0-12287.g0-7"' in text
    assert parse_plan(text) == plan


def test_a_lost_replica_costs_a_few_lines() -> None:
    plan = regular_plan(make_units(4), replicas=12, stages=4, micro_batches=24)
    stages = tuple(stage for stage in plan.stages if stage.replica != 5)
    routes = tuple(r for r in plan.routes if r[0].stage != "r5.s0")
    smaller = replace(plan, stages=stages, routes=routes)
    text = format_plan(smaller)
    assert 'name = "0-4"' in text
    assert 'name = "6-11"' in text
    assert '"0-9" = "r0-4"' in text
    assert parse_plan(text) == smaller


def test_shared_workers_and_redundant_stages() -> None:
    """A worker that also holds its successor's stage, under a replica name of its own."""
    plan = regular_plan(make_units(4), stages=4, micro_batches=4)
    redundant = tuple(
        Stage(1, i, s.first, s.stop, plan.stages[i - 1].workers)
        for i, s in enumerate(plan.stages)
        if i > 0
    )
    both = replace(plan, stages=plan.stages + redundant)
    assert parse_plan(format_plan(both)) == both


def test_stages_that_share_only_some_workers() -> None:
    units = make_units(2)
    stages = (
        Stage(0, 0, 0, 1, ("n0.g0", "n0.g1"), (("tensor", 2),)),
        Stage(0, 1, 1, 2, ("n0.g1",)),
    )
    plan = Plan(units, stages, ((Hop("r0.s0", 0, 1), Hop("r0.s1", 1, 2)),))
    assert parse_plan(format_plan(plan)) == plan


def test_the_text_reads_well() -> None:
    plan = regular_plan(make_units(4), replicas=2, stages=2, tensor=2, micro_batches=8)
    crossing = (Hop("r0.s0", 0, 2), Hop("r1.s1", 2, 4))
    plan = replace(plan, routes=(*plan.routes[:3], crossing, *plan.routes[4:]))
    text = format_plan(plan)
    assert text.endswith(
        "[[replica]]\n"
        'name = "0-1"\n'
        'stages = ["0-1 tensor=2", "2-3 tensor=2"]\n'
        'workers = "n0.g0-7"\n'
        "\n"
        "[routes]\n"
        '"0-2" = "r0"\n'
        '"3" = "r0.s0 r1.s1"\n'
        '"4-7" = "r1"\n'
    )


GOOD = format_plan(regular_plan(make_units(4), replicas=2, stages=2, micro_batches=4))

BAD = {
    "not toml": ("format", "format = = ", "not a plan file"),
    "other format": ("holdfast-plan-1", "holdfast-plan-9", "reads 'holdfast-plan-1'"),
    "unknown key": ('schedule = "1f1b"', 'shedule = "1f1b"', "unknown key 'shedule'"),
    "a missing route": ('"0-3" = "r0-1"', '"0-1" = "r0"', "micro-batch 2 has no route (2 of 4"),
    "two routes": ('"0-3" = "r0-1"', '"0-3" = "r0-1"\n"1" = "r0"', "two routes"),
    "beyond the step": ('"0-3" = "r0-1"', '"0-5" = "r0-1"', "micro-batch 5, the step has 4"),
    "uneven blocks": ('"0-3" = "r0-1"', '"0-2" = "r0-1"\n"3" = "r0"', "3 micro-batches do not"),
    "unknown replica": ('"0-3" = "r0-1"', '"0-3" = "r7"', "replica r7"),
    "unknown stage": ('"0-3" = "r0-1"', '"0-3" = "r0.s0 r7.s1"', "r7.s1"),
    "bad hop": ('"0-3" = "r0-1"', '"0-3" = "r0.s0 there"', "'there'"),
    "few workers": ("n0.g0-3", "n0.g0-2", "need 4 workers, 3 are listed"),
    "bad workers": ("n0.g0-3", "n0:g0-3", "'n0:g0-3'"),
    "bad stage": ('["0-1"', '["0..1"', "stage '0..1'"),
    "unknown axis": ('["0-1"', '["0-1 depth=2"', "'depth'"),
    "bad tensor": ('"norm 5"', '"norm"', "tensor 'norm'"),
    "wrong type": ("activation_bytes = 64", 'activation_bytes = "many"', "activation_bytes"),
    "bad schedule": ('schedule = "1f1b"', "schedule = 3", "schedule = 3"),
    "bad slow": ('schedule = "1f1b"', 'schedule = { kind = "1f1b", slow = 3 }', "slow = 3"),
    "bad limits": ('schedule = "1f1b"', 'schedule = "1f1b"\nlimits = 3', "limits"),
    "bad count": ("micro_batches = 4", 'micro_batches = "4"', "micro_batches = '4'"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=list(BAD))
def test_bad_text_is_refused_in_one_line(case: tuple[str, str, str]) -> None:
    old, new, words = case
    assert old in GOOD
    with pytest.raises(HoldfastError) as caught:
        parse_plan(GOOD.replace(old, new, 1))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shared_slots_need_equal_sizes() -> None:
    text = GOOD.replace('stages = ["0-1", "2-3"]', 'stages = ["0-1", "2-3 tensor=2 slot=0"]')
    with pytest.raises(HoldfastError, match="needs 2 workers, the slot 0 it shares has 1"):
        parse_plan(text)
