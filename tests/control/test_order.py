import msgspec
import pytest

from holdfast.control.order import (
    FullPlan,
    Joiner,
    Order,
    PlanWithout,
    SamePlan,
    Share,
    read_plan,
)
from holdfast.plan.feeding import UnitSource
from holdfast.plan.text import format_plan
from holdfast.plan.without_workers import without_workers
from support.control_jobs import small_plan

PLANS = [FullPlan("text"), SamePlan(3), PlanWithout(3, ("n0.g0",))]


def order(plan, **fields) -> Order:
    joiners = (Joiner("n1.g0", {0: (UnitSource("n0.g0"),)}),)
    return Order(
        number=5, kind="change", plan=plan, incarnations={"n0.g0": 1}, joiners=joiners, **fields
    )


@pytest.mark.parametrize("plan", PLANS)
def test_an_order_travels_with_its_share(plan):
    share = Share(step=4, base=3, keep=((0, 0),), recompute={(0, 0, 1): (1, 2)})
    packed = msgspec.msgpack.encode(order(plan, share=share))
    assert msgspec.msgpack.decode(packed, type=Order) == order(plan, share=share)


@pytest.mark.parametrize("plan", PLANS)
def test_without_one_it_can_be_written_as_text(plan):
    assert msgspec.json.decode(msgspec.json.encode(order(plan)), type=Order) == order(plan)


def test_a_plan_is_read_by_its_difference_from_those_before():
    plan = small_plan(3)
    assert read_plan(FullPlan(format_plan(plan)), {}) == plan
    assert read_plan(SamePlan(1), {1: plan}) is plan
    assert read_plan(PlanWithout(1, ("n0.g0",)), {1: plan}) == without_workers(plan, ["n0.g0"])[0]
