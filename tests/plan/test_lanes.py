"""Lanes and parts: who acts as one, and what touches what."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.lanes import layout_of
from holdfast.plan.plan import Hop, Plan, Stage, whole_route
from support.random_plans import plans
from support.small_plans import blocks, rerouted, shared_plans


def test_a_tensor_group_is_one_lane() -> None:
    plan = regular_plan(blocks(2), replicas=2, stages=2, tensor=2, shard=2, micro_batches=2)
    layout = layout_of(plan)
    assert layout.lanes[2:4] == (("n0.g4", "n0.g5"), ("n0.g6", "n0.g7"))
    assert layout.lane_stages == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))
    assert layout.stage_lanes == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert layout.lane_of_worker["n0.g5"] == 2
    assert layout.routes == ((0, 1), (2, 3))


def test_shard_ranks_take_turns_with_the_micro_batches_of_their_stage() -> None:
    plan = regular_plan(blocks(2), replicas=2, stages=2, shard=2, micro_batches=6)
    layout = layout_of(plan)
    assert plan.shard_ranks["r1.s0"] == {3: 0, 4: 1, 5: 0}
    assert [layout.lanes_of(1, number) for number in (0, 1, 2)] == [(2,), (3,), (2,)]
    assert [(part.lanes, part.micro_batches) for part in layout.parts] == [
        ((0, 2), (0, 2)),
        ((1, 3), (1,)),
        ((4, 6), (3, 5)),
        ((5, 7), (4,)),
    ]
    assert [part.micro_batches for part in layout.whole_parts] == [(0, 1, 2), (3, 4, 5)]


def test_virtual_stages_share_lanes() -> None:
    layout = layout_of(regular_plan(blocks(6), stages=2, virtual=3, micro_batches=2))
    assert layout.lane_stages == ((0, 2, 4), (1, 3, 5))
    assert layout.stage_lanes == ((0,), (1,)) * 3
    assert layout.routes == ((0, 1, 2, 3, 4, 5),) * 2


def test_a_worker_with_a_second_stage_is_a_lane_of_its_own() -> None:
    wide = Stage(0, 0, 0, 1, ("n0.g0", "n0.g1"), (("tensor", 2),))
    alone = Stage(0, 1, 1, 2, ("n0.g1",))
    layout = layout_of(Plan(blocks(2), (wide, alone), (whole_route((wide, alone)),)))
    assert layout.lanes == (("n0.g0",), ("n0.g1",))
    assert layout.lane_stages == ((0,), (0, 1))
    assert layout.stage_lanes == ((0, 1), (1,))


def test_replicas_are_parts_of_their_own() -> None:
    plan = regular_plan(blocks(2), replicas=3, stages=2, micro_batches=7)
    parts = layout_of(plan).parts
    assert [part.lanes for part in parts] == [(0, 1), (2, 3), (4, 5)]
    assert [part.micro_batches for part in parts] == [(0, 1), (2, 3), (4, 5, 6)]


def test_a_route_across_replicas_joins_them() -> None:
    plan = regular_plan(blocks(2), replicas=3, stages=2, micro_batches=6)
    crossing = (Hop("r0.s0", 0, 1), Hop("r2.s1", 1, 2))
    changed = Plan(plan.units, plan.stages, (crossing, *plan.routes[1:]))
    parts = layout_of(changed).parts
    assert [part.lanes for part in parts] == [(0, 1, 4, 5), (2, 3)]
    assert [part.micro_batches for part in parts] == [(0, 1, 4, 5), (2, 3)]


def test_a_shared_worker_joins_too() -> None:
    first = Stage(0, 0, 0, 1, ("n0.g0", "n0.g1"), (("tensor", 2),))
    second = Stage(1, 0, 0, 1, ("n0.g1", "n0.g2"), (("tensor", 2),))
    plan = Plan(blocks(1), (first, second), (whole_route((first,)), whole_route((second,))))
    assert len(layout_of(plan).parts) == 1


def test_an_idle_stage_is_a_part_without_work() -> None:
    stages = (Stage(0, 0, 0, 1, ("n0.g0",)), Stage(1, 0, 0, 1, ("n0.g1",)))
    plan = Plan(blocks(1), stages, (whole_route(stages[:1]),))
    assert [part.micro_batches for part in layout_of(plan).parts] == [(0,), ()]


def test_the_leg_of_a_route_is_found_by_stage() -> None:
    stages = (Stage(0, 0, 0, 2, ("n0.g0",)), Stage(1, 0, 0, 3, ("n0.g1",)))
    route = (Hop("r0.s0", 0, 2), Hop("r1.s0", 2, 3))
    layout = layout_of(Plan(blocks(3), stages, (whole_route(stages[1:]), route)))
    assert layout.hop(1, 0) == Hop("r1.s0", 0, 3)
    assert layout.hop(1, 1) == Hop("r1.s0", 2, 3)


def test_equal_routes_that_are_different_objects_count_alike() -> None:
    plan = rerouted(3, 3, 2, regular_plan(blocks(1)).schedule)
    copies = tuple(tuple(Hop(h.stage, h.first, h.stop) for h in route) for route in plan.routes)
    again = Plan(plan.units, plan.stages, copies, plan.schedule)
    assert layout_of(again).parts == layout_of(plan).parts
    assert layout_of(again).routes == layout_of(plan).routes


@pytest.mark.slow
@settings(max_examples=100)
@given(st.one_of(plans, shared_plans()))
def test_lanes_and_parts_divide_everything(plan: Plan) -> None:
    layout = layout_of(plan)
    assert sorted(w for lane in layout.lanes for w in lane) == sorted(plan.workers)
    for number, stage in enumerate(plan.stages):
        workers = [w for lane in layout.stage_lanes[number] for w in layout.lanes[lane]]
        assert sorted(workers) == sorted(stage.workers)
        assert all(number in layout.lane_stages[lane] for lane in layout.stage_lanes[number])
    lanes = [lane for part in layout.parts for lane in part.lanes]
    assert sorted(lanes) == list(range(len(layout.lanes)))
    numbers = [number for part in layout.parts for number in part.micro_batches]
    assert sorted(numbers) == list(range(plan.num_micro_batches))
    for part in layout.parts:
        for number in part.micro_batches:
            for stage in layout.routes[number]:
                assert set(layout.lanes_of(stage, number)) <= set(part.lanes)
