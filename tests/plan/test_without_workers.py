"""What is left after a loss is a valid plan that moves nothing, or the loss is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.check import check_plan
from holdfast.plan.plan import Hop, Plan, Schedule, Stage, whole_route
from holdfast.plan.transition import plan_transition
from holdfast.plan.without_workers import without_workers
from support.random_plans import irregular_plans, make_units


def survive(plan: Plan, gone: set[str]) -> tuple[Plan, tuple[Stage, ...]] | None:
    try:
        return without_workers(plan, gone)
    except HoldfastError:
        return None


@settings(max_examples=80)
@given(irregular_plans(), st.data())
def test_survivors_form_a_valid_plan_or_units_are_gone(plan: Plan, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(plan.workers), min_size=1, max_size=2))
    stages = [s for s in plan.stages if gone.isdisjoint(s.workers)]
    held = {unit for stage in stages for unit in range(stage.first, stage.stop)}
    if held != set(range(len(plan.units))):
        assert survive(plan, gone) is None  # every micro-batch passes every unit
        return
    smaller, lost = without_workers(plan, gone)
    check_plan(smaller)
    assert {stage.name for stage in lost} == {s.name for s in plan.stages} - {
        s.name for s in smaller.stages
    }
    assert plan_transition(plan, smaller, gone).moves == ()


def test_a_lost_stage_is_replaced_stage_by_stage() -> None:
    plan = regular_plan(make_units(4), replicas=3, stages=2, micro_batches=6)
    smaller, lost = without_workers(plan, ["n0.g1"])
    assert [stage.name for stage in lost] == ["r0.s1"]
    assert [[hop.stage for hop in route] for route in smaller.routes[:2]] == [
        ["r0.s0", "r1.s1"],
        ["r0.s0", "r2.s1"],
    ]
    assert smaller.routes[2:] == plan.routes[2:]


def test_a_lost_replica_goes_to_one_other() -> None:
    plan = regular_plan(make_units(4), replicas=2, stages=2, micro_batches=4)
    smaller, _ = without_workers(plan, ["n0.g0", "n0.g1"])
    assert [hop.stage for hop in smaller.routes[0]] == ["r1.s0", "r1.s1"]


def test_a_stage_that_holds_all_units_takes_over_a_route_of_which_every_stage_is_lost() -> None:
    """Hop by hop it would be passed twice; the holder of the last unit in between is lost, too."""
    units = make_units(3)
    whole = Stage(0, 0, 0, 3, ("n0.g0",))
    parts = [Stage(1, n, n, n + 1, (f"n1.g{n}",)) for n in range(3)]
    split = [Stage(2, 0, 0, 2, ("n2.g0",)), Stage(2, 1, 2, 3, ("n2.g1",))]
    routes = (whole_route((whole,)), whole_route(tuple(parts)), whole_route(tuple(split)))
    plan = Plan(units, (whole, *parts, *split), routes)
    smaller, _ = without_workers(plan, ["n1.g2", "n2.g0", "n2.g1"])
    assert smaller.routes[2] == (Hop("r0.s0", 0, 3),)
    check_plan(smaller)


def test_what_cannot_go_on_says_why() -> None:
    plan = regular_plan(make_units(4), stages=2, micro_batches=4)
    with pytest.raises(HoldfastError, match=r"r0.s1 is lost.* units 2-3"):
        without_workers(plan, ["n0.g1"])
    fixed = Plan(plan.units, plan.stages, plan.routes, Schedule("explicit"))
    with pytest.raises(HoldfastError, match="explicit"):
        without_workers(fixed, ["n0.g1"])
