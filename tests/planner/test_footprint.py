"""Bytes by range of units are those of the plan."""

import msgspec
import pytest

from holdfast.plan.memory import device_memory
from holdfast.plan.plan import Schedule
from holdfast.plan.timeline import evaluate
from holdfast.planner.footprint import Footprint
from holdfast.schedule.registry import priced_rule
from support.planning import PROFILE, small_plan


@pytest.mark.parametrize("kind", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize(
    ("stages", "tensor", "shard"), [(1, 1, 1), (2, 2, 1), (2, 3, 1), (2, 1, 2)]
)
def test_every_stage_needs_what_the_plan_needs(kind, stages, tensor, shard):
    plan = small_plan(1, stages, tensor, shard=shard, schedule=kind)
    use = device_memory(evaluate(plan, PROFILE))
    footprint = Footprint(plan)
    for rank, stage in enumerate(plan.stages):
        kept = priced_rule(kind).in_flight(stages, rank, plan.num_micro_batches)
        mine = footprint.device_bytes(stage.first, stage.stop, tensor, shard, kept)
        assert mine == max(use[worker].total for worker in stage.workers)


def test_gathered_units_that_are_dropped_need_less():
    kept = small_plan(1, 2, 1, shard=2)
    dropped = msgspec.structs.replace(kept, schedule=Schedule(reshard="after_forward"))
    for stage in kept.stages:
        place = (stage.first, stage.stop, 1, 2, 2 - stage.index)
        mine = [Footprint(plan).device_bytes(*place) for plan in (dropped, kept)]
        use = [device_memory(evaluate(plan, PROFILE)) for plan in (dropped, kept)]
        assert mine[0] < mine[1]
        assert mine == [max(u[worker].total for worker in stage.workers) for u in use]


def test_a_tied_tensor_counts_once():
    footprint = Footprint(small_plan(1, 1, 1))
    ends = footprint.most_held(0, 1, 1) + footprint.most_held(7, 8, 1)
    middle = footprint.most_held(1, 7, 1)
    assert footprint.most_held(0, 8, 1) == ends + middle - 12 * 3


def test_limits_are_kept():
    plan = small_plan(1, 2, 1)
    size = Footprint(plan).device_bytes(0, 4, 1, 1, 2)
    tight = Footprint(small_plan(1, 2, 1, limit=size))
    assert tight.fits(0, 4, 1, 1, 2)
    assert not tight.fits(0, 5, 1, 1, 2)
    assert not tight.fits(0, 1, 7, 1, 1)  # more ranks than heads


@pytest.mark.parametrize("shard", [1, 2])
@pytest.mark.parametrize("limit", [0, 2_000, 4_000, 8_000])
def test_room_ends_where_one_more_unit_does_not_fit(limit, shard):
    footprint = Footprint(small_plan(1, 2, 1, limit=limit))
    for first in range(8):
        for tensor in (1, 2, 7):
            stop = footprint.room(first, tensor, shard, 2)
            assert stop == first or footprint.fits(first, stop, tensor, shard, 2)
            assert stop == 8 or not footprint.fits(first, stop + 1, tensor, shard, 2)


def test_the_whole_is_what_one_worker_alone_holds():
    footprint = Footprint(small_plan(1, 1, 1))
    for first, stop in ((0, 8), (0, 1), (3, 5), (7, 8)):
        assert footprint.whole(first, stop) == footprint.held(first, stop, 1)[0]
