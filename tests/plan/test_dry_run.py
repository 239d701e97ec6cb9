"""The dry run accepts every valid plan and refuses every order that could block."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings

from holdfast.errors import HoldfastError
from holdfast.plan.action_lists import lines_of, lower
from holdfast.plan.actions import Action, format_action
from holdfast.plan.build import regular_plan
from holdfast.plan.check import check_plan
from holdfast.plan.dry_run import dry_run
from holdfast.plan.plan import Plan, Schedule
from support.random_plans import irregular_plans, make_units, plans


@settings(max_examples=150)
@given(plans)
def test_valid_plans_pass_and_compute_everything_exactly_once(plan: Plan) -> None:
    check_plan(plan)
    layout, lists = lower(plan)
    done: Counter[tuple[str, str, int]] = Counter()
    for lane, actions in enumerate(lists):
        stages = [plan.stages[number].name for number in layout.lane_stages[lane]]
        for action in actions:
            if action.kind in ("F", "B", "I", "W"):
                assert action.stage in stages
                done[action.kind, action.stage, action.number] += 1
    expected: Counter[tuple[str, str, int]] = Counter()
    backward = ("I", "W") if plan.schedule.kind == "zero-bubble" else ("B",)
    for micro_batch, route in enumerate(plan.routes):
        for hop in route:
            for kind in ("F", *backward):
                expected[kind, hop.stage, micro_batch] += 1
    assert done == expected
    covered = [unit for hop in plan.routes[0] for unit in range(hop.first, hop.stop)]
    assert covered == list(range(len(plan.units)))


@settings(max_examples=60)
@given(irregular_plans())
def test_sends_and_receives_pair_up(plan: Plan) -> None:
    _, lists = lower(plan)
    balance: Counter[tuple[str, int, str, str]] = Counter()
    for actions in lists:
        for action in actions:
            if action.kind in ("SF", "SB"):
                balance[action.kind[1], action.number, action.stage, action.peer] += 1
            elif action.kind in ("RF", "RB"):
                balance[action.kind[1], action.number, action.peer, action.stage] -= 1
    assert not +balance
    assert not -balance


def explicit(plan: Plan, edit: dict[str, str]) -> Plan:
    """The plan with its own lines written out, some of them replaced."""
    layout, lists = lower(plan)
    lines = dict(lines_of(layout, lists)) | edit
    schedule = Schedule("explicit", orders=tuple(lines.items()))
    return msgspec.structs.replace(plan, schedule=schedule)


def two_stages(micro_batches: int = 2) -> Plan:
    return regular_plan(make_units(2), stages=2, micro_batches=micro_batches)


def test_written_out_lines_pass() -> None:
    assert dry_run(explicit(two_stages(), {})) == dry_run(two_stages())


DEADLOCKS = {
    "both send first": (
        "F0 SF0>r0.s1 F1 SF1>r0.s1 RB0<r0.s1 B0 RB1<r0.s1 B1 REDUCE0 AGREE STEP",
        "RF0<r0.s0 F0 B0 SB0>r0.s0 RF1<r0.s0 F1 B1 SB1>r0.s0 REDUCE1 AGREE STEP",
    ),
    "both receive first": (
        "F0 RB0<r0.s1 SF0>r0.s1 F1 SF1>r0.s1 B0 RB1<r0.s1 B1 REDUCE0 AGREE STEP",
        "RF0<r0.s0 F0 B0 RF1<r0.s0 SB0>r0.s0 F1 B1 SB1>r0.s0 REDUCE1 AGREE STEP",
    ),
    "swapped messages": (
        "F0 F1 SF1>r0.s1 SF0>r0.s1 RB0<r0.s1 B0 RB1<r0.s1 B1 REDUCE0 AGREE STEP",
        "RF0<r0.s0 F0 RF1<r0.s0 F1 B0 SB0>r0.s0 B1 SB1>r0.s0 REDUCE1 AGREE STEP",
    ),
    "a receive no worker serves": (
        "F0 SF0>r0.s1 F1 SF1>r0.s1 RB0<r0.s1 B0 RB1<r0.s1 B1 RB1<r0.s1 REDUCE0 AGREE STEP",
        "RF0<r0.s0 F0 RF1<r0.s0 F1 B0 SB0>r0.s0 B1 SB1>r0.s0 REDUCE1 AGREE STEP",
    ),
    "agreement before a message": (
        "F0 SF0>r0.s1 F1 SF1>r0.s1 RB0<r0.s1 B0 AGREE RB1<r0.s1 B1 REDUCE0 STEP",
        "RF0<r0.s0 F0 RF1<r0.s0 F1 B0 SB0>r0.s0 B1 SB1>r0.s0 REDUCE1 AGREE STEP",
    ),
}


@pytest.mark.parametrize("lines", DEADLOCKS.values(), ids=list(DEADLOCKS))
def test_deadlocks_are_refused(lines: tuple[str, str]) -> None:
    plan = explicit(two_stages(), {"n0.g0": lines[0], "n0.g1": lines[1]})
    with pytest.raises(HoldfastError, match=r"cyclic wait|no tags|can never end"):
        dry_run(plan)


def test_the_first_deadlock_needs_buffering_only() -> None:
    """With a buffered send the first one would run: it is refused all the same."""
    lines = DEADLOCKS["both send first"]
    with pytest.raises(HoldfastError, match=r"n0\.g0 at SF1>r0\.s1.* waits for n0\.g1"):
        dry_run(explicit(two_stages(), {"n0.g0": lines[0], "n0.g1": lines[1]}))


def test_a_cycle_of_three() -> None:
    """Each receives before it sends what the other waits for."""
    plan = regular_plan(make_units(3), stages=3, micro_batches=1)
    lines = {
        "n0.g0": "F0 RB0<r0.s1 SF0>r0.s1 B0 REDUCE0 AGREE STEP",
        "n0.g1": "RF0<r0.s0 F0 RB0<r0.s2 SF0>r0.s2 B0 SB0>r0.s0 REDUCE1 AGREE STEP",
        "n0.g2": "RF0<r0.s1 F0 B0 SB0>r0.s1 REDUCE2 AGREE STEP",
    }
    with pytest.raises(HoldfastError, match="cyclic wait"):
        dry_run(explicit(plan, lines))


def test_reductions_in_two_orders_are_refused() -> None:
    plan = regular_plan(make_units(2), replicas=2, stages=1, micro_batches=2)
    layout, lists = lower(plan)
    line = dict(lines_of(layout, lists))["n0.g1"]
    swapped = line.replace("REDUCE0", "X").replace("REDUCE1", "REDUCE0").replace("X", "REDUCE1")
    assert swapped != line
    with pytest.raises(HoldfastError, match="cyclic wait"):
        dry_run(explicit(plan, {"n0.g1": swapped}))


@settings(max_examples=60)
@given(irregular_plans())
def test_moving_one_receive_behind_the_agreement_is_refused(plan: Plan) -> None:
    layout, lists = lower(plan)
    for lane, actions in enumerate(lists):
        at = next((i for i, action in enumerate(actions) if action.kind in ("RF", "RB")), None)
        if at is None:
            continue
        changed = [list(line) for line in lists]
        moved = changed[lane].pop(at)
        changed[lane].append(moved)
        lines = dict(lines_of(layout, changed))
        schedule = Schedule("explicit", orders=tuple(lines.items()))
        with pytest.raises(HoldfastError):
            check_plan(msgspec.structs.replace(plan, schedule=schedule))
        return


def test_large_plans_are_walked_by_kind() -> None:
    small = regular_plan(make_units(4), replicas=2, stages=2, micro_batches=8)
    large = regular_plan(make_units(4), replicas=512, stages=2, micro_batches=2048)
    assert dry_run(large) == dry_run(small)


def test_actions_have_text() -> None:
    assert format_action(Action("SF", 3, "r0.s1", "r0.s2")) == "SF3>r0.s2@r0.s1"
