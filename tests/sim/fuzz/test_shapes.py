from random import Random

from holdfast.plan.check import check_plan
from holdfast.plan.text import format_plan, parse_plan
from holdfast.sim.fuzz.shapes import MAX_WORKERS, draw_layout, draw_shape
from support.control_jobs import small_plan

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


def test_plans_drawn_during_a_run_are_of_all_kinds_that_a_planner_makes():
    home, rng = small_plan(3, 2, micro_batches=4), Random(1)
    plans = [draw_layout(rng, home, list(home.workers)) for _ in range(100)]
    sizes = [{len(s.workers) for s in ss} for plan in plans for ss in plan.replicas.values()]
    routes = [(plan, route) for plan in plans for route in plan.routes]
    assert any(len(found) > 1 for found in sizes), "stages of one replica that are cut differently"
    assert any(stage.shard > 1 for plan in plans for stage in plan.stages)
    assert any(len(seats) > 1 for plan in plans for seats in plan.seats.values()), "held twice"
    assert any(len({plan.stage(h.stage).replica for h in route}) > 1 for plan, route in routes)
    shares = [[len(found) for found in plan.micro_batches_by_stage.values()] for plan in plans]
    assert any(max(found) > min(found) + 1 for found in shares)
