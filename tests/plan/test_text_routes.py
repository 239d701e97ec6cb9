import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Hop
from holdfast.plan.text_routes import format_route, parse_route, parse_routes, route_runs
from support.random_plans import make_units

PLAN = regular_plan(make_units(4), replicas=3, stages=2, micro_batches=6)


def test_a_route_names_units_only_where_a_stage_is_used_in_part() -> None:
    route = (Hop("r0.s0", 0, 2), Hop("r1.s1", 2, 3), Hop("r2.s1", 3, 4))
    text = format_route(route, PLAN)
    assert text == "r0.s0 r1.s1[2-2] r2.s1[3-3]"
    assert parse_route(text, PLAN.stage_by_name) == route


def test_equal_blocks_of_whole_replicas_are_one_line() -> None:
    assert list(route_runs(PLAN)) == [("0-5", "r0-2")]
    uneven = msgspec.structs.replace(PLAN, routes=PLAN.routes[:1] + PLAN.routes[2:])
    assert list(route_runs(uneven)) == [("0", "r0"), ("1-4", "r1-2")]


def test_every_micro_batch_has_one_route() -> None:
    assert parse_routes({"0-3": "r0", "4-5": "r2"}, 6, PLAN.stages) == (
        *PLAN.routes[:1] * 4,
        *PLAN.routes[4:],
    )
    with pytest.raises(HoldfastError, match="micro-batch 4 has no route"):
        parse_routes({"0-3": "r0"}, 6, PLAN.stages)
