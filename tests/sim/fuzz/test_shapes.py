from random import Random

from holdfast.plan.check import check_plan
from holdfast.plan.text import format_plan, parse_plan
from holdfast.sim.fuzz.shapes import MAX_WORKERS, draw_shape

SHAPES = [draw_shape(Random(seed)) for seed in range(60)]


def test_every_plan_is_sound_and_can_be_written():
    for shape in SHAPES:
        for plan in (shape.plan, shape.other):
            check_plan(plan)
            assert parse_plan(format_plan(plan)) == plan


def test_both_plans_are_for_the_same_workers_all_of_whom_have_a_place():
    for shape in SHAPES:
        assert sorted(shape.plan.workers) == sorted(shape.other.workers)
        places = [name for names in shape.places.values() for name in names]
        assert set(shape.plan.workers) <= set(places)
        assert len(shape.plan.workers) <= MAX_WORKERS


def test_the_shapes_differ_where_it_matters():
    assert any(len({s.stop - s.first for s in shape.plan.stages}) > 1 for shape in SHAPES)
    assert any(stage.tensor > 1 for shape in SHAPES for stage in shape.plan.stages)
    assert any(len({s.tensor for s in shape.plan.stages}) > 1 for shape in SHAPES)
    assert any(shape.plan != shape.other for shape in SHAPES)
    assert any(len(shape.plan.workers) < sum(map(len, shape.places.values())) for shape in SHAPES)
