"""Explicit orders are taken as they stand."""

from holdfast.plan.lanes import layout_of
from holdfast.plan.plan import Plan, Schedule
from holdfast.schedule.explicit import Explicit
from holdfast.schedule.orders import compute_orders
from support.explicit_orders import format_orders
from support.small_plans import even_chain


def test_explicit_lines_are_taken_as_they_stand() -> None:
    plan = even_chain(2, 3)
    orders = compute_orders(layout_of(even_chain(2, 3, "gpipe")))
    lines = format_orders(layout_of(plan), orders)
    explicit = Plan(plan.units, plan.stages, plan.routes, Schedule("explicit", orders=lines))
    assert Explicit().written_orders(layout_of(explicit)) == orders
    assert compute_orders(layout_of(explicit)) == orders
