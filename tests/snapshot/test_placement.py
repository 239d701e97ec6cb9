"""Placement of snapshot chunks: rules that hold for every plan, and cases worked out by hand."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.action_lists import lower_timeline
from holdfast.plan.actions import format_line
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link
from holdfast.plan.timeline import Timeline, evaluate
from holdfast.snapshot.placement import (
    AGREE,
    CopyCosts,
    cut,
    place,
    windows,
    with_copies,
)
from support.random_plans import plans
from support.slow_timeline import crew
from support.small_plans import even_chain, per_stage, profiles_for, rerouted, shared_plans

any_plan = st.one_of(plans, shared_plans())


@st.composite
def cases(draw: st.DrawFn) -> tuple[Timeline, int, tuple[int, ...], CopyCosts, float]:
    plan: Plan = draw(any_plan)
    profile = msgspec.structs.replace(
        draw(profiles_for(plan)),
        reduce=draw(st.sampled_from([Link(), Link(0.25, 8.0)])),
        agree=draw(st.sampled_from([0.0, 0.5])),
        optimizer=draw(st.sampled_from([0.0, 1.0])),
    )
    timeline = evaluate(plan, profile)
    lane = draw(st.integers(0, len(timeline.layout.lanes) - 1))
    sizes = cut(draw(st.integers(0, 200)), draw(st.integers(1, 16)))
    costs = CopyCosts(
        idle_rate=draw(st.sampled_from([0.5, 4.0, 64.0])),
        busy_rate=draw(st.sampled_from([0.0, 2.0, 32.0])),
        drag=draw(st.sampled_from([0.0, 0.02, 1.0])),
        staging_rate=draw(st.sampled_from([0.0, 1000.0])),
        staging_bytes=draw(st.sampled_from([0.0, 50.0, 1000.0])),
    )
    return timeline, lane, sizes, costs, draw(st.sampled_from([0.001, 0.01, 0.3]))


@pytest.mark.slow
@settings(max_examples=100)
@given(cases())
def test_every_chunk_goes_somewhere_once(case: tuple) -> None:
    timeline, lane, sizes, costs, limit = case
    found = place(timeline, lane, sizes, costs, limit=limit)
    inside = [n for step in found.steps for filled in step for n in filled.chunks]
    assert sorted([*inside, *found.beside, *found.before]) == list(range(len(sizes)))
    later = [n for step in found.steps[1:] for filled in step for n in filled.chunks]
    assert sorted(later) == sorted(found.staged)
    assert found.cost <= limit * (1 + 1e-6)
    assert found.interval >= len(found.steps)
    assert 0 <= found.share_in_gaps <= 1


@pytest.mark.slow
@settings(max_examples=100)
@given(cases())
def test_no_chunk_leaves_its_window_or_meets_traffic(case: tuple) -> None:
    timeline, lane, sizes, costs, limit = case
    found = place(timeline, lane, sizes, costs, limit=limit)
    gaps = timeline.gaps(lane)
    stop = timeline.iteration_time - timeline.epilogue.optimizer
    for step in found.steps:
        ends = [filled.window.end for filled in step]
        assert ends == sorted(ends)
        for filled in step:
            window = filled.window
            assert window.start + filled.busy <= window.end + 1e-9
            assert filled.busy == pytest.approx(
                sum(sizes[n] for n in filled.chunks) / costs.idle_rate
            )
            assert window.end <= stop + 1e-9
            assert any(a - 1e-9 <= window.start and window.end <= b + 1e-9 for a, b in gaps)
            _assert_quiet(timeline, lane, window.start, window.end)


def _assert_quiet(timeline: Timeline, lane: int, start: float, end: float) -> None:
    """The slow way round: every event of the whole plan is looked at."""
    layout, program = timeline.layout, timeline.program
    names = set(layout.lanes[lane])
    for number, channel in enumerate(program.channel):
        if channel < 0:
            continue
        micro_batch = program.ops[number][2]
        source, target = (crew(layout, stage, micro_batch) for stage in program.channels[channel])
        if names & {*source, *target} and source != target:
            leave, arrive = timeline.end[number], timeline.arrive[number]
            assert arrive <= start + 1e-9 or leave >= end - 1e-9 or arrive == leave
    for reduction in timeline.epilogue.reductions:
        if lane in reduction.lanes:
            assert reduction.end <= start + 1e-9 or reduction.start >= end - 1e-9


@pytest.mark.slow
@settings(max_examples=100)
@given(cases())
def test_placing_twice_gives_the_same(case: tuple) -> None:
    timeline, lane, sizes, costs, limit = case
    assert place(timeline, lane, sizes, costs, limit=limit) == place(
        timeline, lane, sizes, costs, limit=limit
    )


@pytest.mark.slow
@settings(max_examples=100)
@given(cases())
def test_a_shorter_interval_would_break_the_limit(case: tuple) -> None:
    timeline, lane, sizes, costs, limit = case
    found = place(timeline, lane, sizes, costs, limit=limit)
    if found.interval > len(found.steps):
        assert found.cost * found.interval / (found.interval - 1) > limit


# By hand: the windows of 1F1B.

DEPTH, NUM = 4, 8
FORWARD, BACKWARD = 1.0, 2.0
CHAIN = evaluate(even_chain(DEPTH, NUM), per_stage(FORWARD, 1.0, 1.0))


def lengths(stage: int) -> dict[str, float]:
    """Idle time of a stage by the part of the step it lies in."""
    found = {"head": 0.0, "middle": 0.0, "cool-down": 0.0, "tail": 0.0}
    for window in windows(CHAIN, stage):
        length = window.end - window.start
        if window.key == AGREE:
            found["tail"] += length
        elif window.key[0] == "F":
            found["head"] += length
        else:
            found["middle" if window.key[2] == 0 else "cool-down"] += length
    return found


@pytest.mark.parametrize("stage", range(DEPTH))
def test_windows_of_1f1b_are_where_the_formula_has_them(stage: int) -> None:
    assert lengths(stage) == {
        "head": stage * FORWARD,
        "middle": (DEPTH - 1 - stage) * BACKWARD,
        "cool-down": (DEPTH - 1 - stage) * FORWARD,
        "tail": stage * BACKWARD,
    }


def test_the_first_stage_copies_in_the_middle_and_the_last_at_both_ends() -> None:
    costs = CopyCosts(idle_rate=10.0, usable=1.0)
    first, last = (place(CHAIN, lane, cut(90, 10), costs) for lane in (0, DEPTH - 1))
    assert [(f.window.key, f.chunks) for f in first.steps[0]] == [
        (("B", "r0.s0", 0), (0, 1, 2, 3, 4, 5)),
        (("B", "r0.s0", 5), (6,)),
        (("B", "r0.s0", 6), (7,)),
        (("B", "r0.s0", 7), (8,)),
    ]
    assert [(f.window.key, f.chunks) for f in last.steps[0]] == [
        (("F", "r0.s3", 0), (0, 1, 2)),
        (AGREE, (3, 4, 5, 6, 7, 8)),
    ]
    assert first.share_in_gaps == last.share_in_gaps == 1
    assert first.interval == 1
    assert first.cost == 0
    assert first.reason == "all 9 chunks fit into the gaps of one step: every step"


def test_messages_take_their_time_out_of_the_windows() -> None:
    plan = regular_plan(even_chain(2, 4).units, stages=2, micro_batches=4)
    sized = msgspec.structs.replace(
        plan, units=tuple(msgspec.structs.replace(u, boundary_bytes=8) for u in plan.units)
    )
    profile = msgspec.structs.replace(per_stage(1, 1, 1), within_node=Link(0.0, 32.0))
    timeline = evaluate(sized, profile)
    head = windows(timeline, 1)[0]
    assert (head.start, head.end) == (0.0, 1.0)  # the message travels from 1 to 1.25
    assert timeline.start[timeline.program.lanes[1][0]] == 1.25


def test_shard_ranks_make_room_for_their_own_messages_only() -> None:
    """Micro-batch 1 travels between the second ranks of both stages from 1 to 2, its gradient from
    5 to 5.25; the first ranks have their own messages at 1 and 4.25.
    """
    units = tuple(msgspec.structs.replace(u, boundary_bytes=8) for u in even_chain(2, 2).units)
    plan = regular_plan(units, stages=2, shard=2, micro_batches=2)
    profile = msgspec.structs.replace(
        per_stage(1, 1, 1), within_node=Link(0.0, 32.0), links={"n0.g1>n0.g3": Link(0.0, 8.0)}
    )
    timeline = evaluate(plan, profile)
    found = [[(w.start, w.end) for w in windows(timeline, lane)] for lane in range(4)]
    assert found == [
        [(1.25, 4.25), (6.5, 7.25)],
        [(2.0, 5.0)],
        [(0.0, 1.0), (4.5, 7.25)],
        [(0.0, 1.0), (5.25, 7.25)],
    ]


# What does not fit.

FULL = evaluate(even_chain(1, 4), per_stage(1.0, 1.0, 1.0))
"""One worker, 12 long: no gaps at all."""


def test_without_gaps_copies_run_beside_computations_where_that_is_cheap() -> None:
    costs = CopyCosts(idle_rate=10.0, busy_rate=10.0, drag=0.02)
    found = place(FULL, 0, cut(60, 10), costs)
    assert found.beside == tuple(range(6))
    assert found.interval == 1
    assert found.cost == pytest.approx(0.02 * 6 / 12)
    assert found.share_in_gaps == 0
    assert "6 copied beside computations; every step that costs 1.00%" in found.reason


def test_a_cost_above_the_limit_makes_the_interval_longer() -> None:
    costs = CopyCosts(idle_rate=100.0)
    found = place(FULL, 0, cut(60, 10), costs)
    assert found.before == tuple(range(6))
    assert found.interval == 5  # 0.6 of 12 is 5 %
    assert found.cost == pytest.approx(0.01)
    assert "every 5 steps" in found.reason


def test_what_exceeds_the_time_beside_computations_waits_for_the_update() -> None:
    costs = CopyCosts(idle_rate=10.0, busy_rate=2.0, drag=0.0)
    found = place(FULL, 0, cut(40, 8), costs)
    assert (found.beside, found.before) == ((0, 1, 2), (3, 4))
    assert found.interval == 14  # 1.6 of 12


def test_staging_spreads_a_copy_over_several_steps() -> None:
    costs = CopyCosts(
        idle_rate=10.0, usable=1.0, staging_rate=10_000.0, staging_bytes=1000.0, busy_rate=0.0
    )
    found = place(CHAIN, 0, cut(200, 10), costs)
    assert [sum(len(f.chunks) for f in step) for step in found.steps] == [9, 9, 2]
    assert found.staged == tuple(range(9, 20))
    assert found.interval == 3
    assert found.share_in_gaps == 1
    assert "staged on the device and copied over 3 steps" in found.reason


def test_staging_needs_room() -> None:
    costs = CopyCosts(idle_rate=10.0, usable=1.0, staging_rate=10_000.0, staging_bytes=100.0)
    found = place(CHAIN, 0, cut(200, 10), costs)
    assert found.staged == ()
    assert found.before == tuple(range(9, 20))


def test_an_irregular_plan_is_placed_too() -> None:
    plan = rerouted(3, 3, 3, even_chain(2, 2).schedule)
    timeline = evaluate(plan, per_stage(1.0, 1.0, 1.0))
    lanes = range(len(timeline.layout.lanes))
    found = [place(timeline, lane, cut(20, 10), CopyCosts(idle_rate=20.0)) for lane in lanes]
    assert min(placement.share_in_gaps for placement in found) > 0.4


# The list of actions.


def test_copies_stand_in_the_action_list_where_they_run() -> None:
    timeline = evaluate(even_chain(2, 2), per_stage(1.0, 1.0, 1.0))
    costs = CopyCosts(idle_rate=10.0, usable=1.0)
    last = place(timeline, 1, cut(45, 10), costs)
    line = with_copies(lower_timeline(timeline)[1], last)
    assert format_line(line, "r0.s1") == (
        "RF0<r0.s0 SNAP0 F0 RF1<r0.s0 B0 SB0>r0.s0 F1 B1 SB1>r0.s0 REDUCE1 "
        "SNAP1 SNAP2 AGREE SNAP3 SNAP4 STEP"
    )


# Bad input.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limit": 0.0}, "limit = 0.0"),
        ({"costs": CopyCosts(idle_rate=0.0)}, "idle_rate = 0.0"),
        ({"sizes": (1, 0)}, "a chunk of 0 bytes"),
        ({"timeline": evaluate(even_chain(1, 1), per_stage(0, 0, 0))}, "no length"),
    ],
)
def test_bad_input_is_refused(change: dict, words: str) -> None:
    given = {"timeline": FULL, "sizes": (1,), "costs": CopyCosts(idle_rate=1.0), "limit": 0.01}
    given |= change
    with pytest.raises(HoldfastError, match=words):
        place(given["timeline"], 0, given["sizes"], given["costs"], limit=given["limit"])


def test_chunks_of_no_size_are_refused() -> None:
    with pytest.raises(HoldfastError, match="chunks of 0 bytes"):
        cut(10, 0)
