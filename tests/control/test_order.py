import msgspec
import pytest

from holdfast.control.order import FullPlan, Joiner, Order, PlanWithout, SamePlan, Share


@pytest.mark.parametrize("plan", [FullPlan("text"), SamePlan(3), PlanWithout(3, ("n0.g0",))])
def test_orders_travel_with_their_plan_and_share(plan):
    share = Share(step=4, base=3, keep=((0, 0),), recompute={(0, 0, 1): (1, 2)})
    order = Order(
        number=5,
        kind="recover",
        plan=plan,
        incarnations={"n0.g0": 1},
        share=share,
        joiners=(Joiner("n1.g0", {0: "n0.g0"}),),
    )
    for encode, decode in (
        (msgspec.json.encode, msgspec.json.decode),
        (msgspec.msgpack.encode, msgspec.msgpack.decode),
    ):
        assert decode(encode(order), type=Order) == order
