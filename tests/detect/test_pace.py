"""The waves are held against the timeline, which is the truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detect.pace import compile_shapes
from holdfast.errors import HoldfastError
from holdfast.plan.lanes import layout_of
from holdfast.plan.profile import resolve
from holdfast.plan.timeline import compile_program, run
from holdfast.schedule.orders import compute_orders
from support.small_plans import even_chain, profiles_for, shared_plans


def compiled(plan, profile):
    layout = layout_of(plan)
    program = compile_program(layout, compute_orders(layout, profile))
    costs = resolve(layout, profile)
    durations = [costs.duration(op) for op in program.ops]
    return program, durations, run(program, durations, costs)


def wave_ends(program, profile, durations):
    ends = np.full(len(program.ops), -1.0)
    for shape in compile_shapes(program, profile):
        found = shape.ends(np.array(durations)[shape.ops], shape.links)
        ends[shape.ops] = found[:-1]
    return ends


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_waves_and_timeline_agree_on_any_plan(data):
    plan = data.draw(shared_plans())
    profile = data.draw(profiles_for(plan))
    try:
        program, durations, timeline = compiled(plan, profile)
    except HoldfastError:
        return  # a plan that waits for itself
    assert wave_ends(program, profile, durations) == pytest.approx(timeline.end)


def test_replicas_that_look_alike_share_one_shape():
    from detect.small_job import PROFILE, small_plan

    program, durations, timeline = compiled(small_plan(), PROFILE)
    shapes = compile_shapes(program, PROFILE)
    assert [shape.parts for shape in shapes] == [(0, 1, 2, 3)]
    last = shapes[0].ends(np.array(durations)[shapes[0].ops], shapes[0].links)[shapes[0].last]
    assert last.max() == pytest.approx(timeline.epilogue.computed)


def test_without_messages_there_are_no_links():
    from holdfast.plan.profile import Profile, UnitCost

    profile = Profile(worker=UnitCost(1.0, 1.0, 1.0))
    program, _, _ = compiled(even_chain(3, 4), profile)
    assert compile_shapes(program, profile)[0].links is None
