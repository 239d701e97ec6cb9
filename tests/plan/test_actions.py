import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.actions import (
    KINDS,
    RECEIVES,
    SENDS,
    Action,
    format_line,
    parse_action,
    parse_line,
)
from holdfast.plan.build import regular_plan
from holdfast.plan.lanes import layout_of
from holdfast.schedule.orders import compute_orders
from support.explicit_orders import format_orders
from support.random_plans import make_units


@st.composite
def actions(draw: st.DrawFn) -> Action:
    kind = draw(st.sampled_from(KINDS))
    number = -1 if kind in ("AGREE", "STEP") else draw(st.integers(0, 10**6))
    stages = st.builds("r{}.s{}".format, st.integers(0, 99), st.integers(0, 99))
    workers = st.builds("n{}.g{}".format, st.integers(0, 99), st.integers(0, 7))
    own = "" if kind in ("AGREE", "STEP", "PUT", "GET") else draw(stages)
    peer = draw(workers if kind in ("PUT", "GET") else stages) if kind in SENDS + RECEIVES else ""
    return Action(kind, number, own, peer)


@given(st.lists(actions()), st.sampled_from(["", "r0.s0", "r1.s2"]))
def test_lines_parse_back(line: list[Action], only: str) -> None:
    assert parse_line(format_line(line, only), only) == line


def test_a_worker_with_one_stage_need_not_name_it() -> None:
    line = [Action("F", 0, "r0.s0"), Action("SF", 0, "r0.s0", "r0.s1"), Action("AGREE")]
    assert format_line(line, "r0.s0") == "F0 SF0>r0.s1 AGREE"
    assert format_line(line) == "F0@r0.s0 SF0>r0.s1@r0.s0 AGREE"


@pytest.mark.parametrize("text", ["", "f0", "F", "AGREE3", "SF0", "SF0<r0.s1", "F0>r0.s1", "Q1"])
def test_bad_actions(text: str) -> None:
    with pytest.raises(HoldfastError, match="action"):
        parse_action(text)


def test_orders_are_one_line_per_worker() -> None:
    plan = regular_plan(make_units(2), stages=2, tensor=2, micro_batches=3)
    layout = layout_of(plan)
    lines = format_orders(layout, compute_orders(layout))
    assert lines == (
        ("n0.g0", "F0 F1 B0 F2 B1 B2"),
        ("n0.g1", "F0 F1 B0 F2 B1 B2"),
        ("n0.g2", "F0 B0 F1 B1 F2 B2"),
        ("n0.g3", "F0 B0 F1 B1 F2 B2"),
    )
