"""Placement of snapshot chunks: rules that hold for every plan, and cases worked out by hand."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link
from holdfast.plan.timeline import Timeline, evaluate
from holdfast.snapshot.placement import AGREE, place, windows
from support.random_plans import plans
from support.slow_timeline import computing_workers
from support.small_plans import even_chain, per_stage, profiles_for, rerouted, shared_plans

any_plan = st.one_of(plans, shared_plans())


def cut(num_bytes: int, chunk_bytes: int) -> tuple[int, ...]:
    """Equal chunks and a shorter last one."""
    full, rest = divmod(num_bytes, chunk_bytes)
    return (chunk_bytes,) * full + ((rest,) if rest else ())


@st.composite
def cases(draw: st.DrawFn) -> tuple[Timeline, int, tuple[int, ...], float]:
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
    return timeline, lane, sizes, draw(st.sampled_from([0.5, 4.0, 64.0]))


@pytest.mark.slow
@settings(max_examples=100)
@given(cases())
def test_every_chunk_goes_somewhere_once(case: tuple) -> None:
    timeline, lane, sizes, rate = case
    found = place(timeline, lane, sizes, rate)
    inside = [n for filled in found.filled for n in filled.chunks]
    assert [*inside, *found.left] == list(range(len(sizes)))
    placed = sum(sizes[n] for n in inside)
    assert found.share_in_gaps == pytest.approx(placed / sum(sizes) if sizes else 1)


@pytest.mark.slow
@settings(max_examples=100)
@given(cases())
def test_no_chunk_leaves_its_window_or_meets_traffic(case: tuple) -> None:
    timeline, lane, sizes, rate = case
    found = place(timeline, lane, sizes, rate)
    gaps = timeline.gaps(lane)
    stop = timeline.iteration_time - timeline.epilogue.optimizer
    ends = [filled.window.end for filled in found.filled]
    assert ends == sorted(ends)
    for filled in found.filled:
        window = filled.window
        assert window.start + filled.busy <= window.end + 1e-9
        assert filled.busy == pytest.approx(sum(sizes[n] for n in filled.chunks) / rate)
        assert window.end <= stop + 1e-9
        assert any(a - 1e-9 <= window.start and window.end <= b + 1e-9 for a, b in gaps)
        _assert_quiet(timeline, lane, window.start, window.end)


@pytest.mark.slow
@settings(max_examples=100)
@given(cases())
def test_what_is_left_fits_into_no_window(case: tuple) -> None:
    timeline, lane, sizes, rate = case
    found = place(timeline, lane, sizes, rate)
    if found.left:
        size, last = sizes[found.left[0]] / rate, found.filled[-1:]
        assert all(f.busy + size > 0.9 * (f.window.end - f.window.start) - 1e-9 for f in last)


def _assert_quiet(timeline: Timeline, lane: int, start: float, end: float) -> None:
    """The slow way round: every event of the whole plan is looked at."""
    layout, program = timeline.layout, timeline.program
    names = set(layout.lanes[lane])
    for number, channel in enumerate(program.channel):
        if channel < 0:
            continue
        micro_batch = program.ops[number][2]
        source, target = (
            computing_workers(layout, stage, micro_batch) for stage in program.channels[channel]
        )
        if names & {*source, *target} and source != target:
            leave, arrive = timeline.end[number], timeline.arrive[number]
            assert arrive <= start + 1e-9 or leave >= end - 1e-9 or arrive == leave
    for reduction in timeline.epilogue.reductions:
        if lane in reduction.lanes:
            assert reduction.end <= start + 1e-9 or reduction.start >= end - 1e-9


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
    first, last = (place(CHAIN, lane, cut(90, 10), 10.0, usable=1.0) for lane in (0, DEPTH - 1))
    assert [(f.window.key, f.chunks) for f in first.filled] == [
        (("B", "r0.s0", 0), (0, 1, 2, 3, 4, 5)),
        (("B", "r0.s0", 5), (6,)),
        (("B", "r0.s0", 6), (7,)),
        (("B", "r0.s0", 7), (8,)),
    ]
    assert [(f.window.key, f.chunks) for f in last.filled] == [
        (("F", "r0.s3", 0), (0, 1, 2)),
        (AGREE, (3, 4, 5, 6, 7, 8)),
    ]
    assert first.share_in_gaps == last.share_in_gaps == 1
    assert first.left == last.left == ()
    assert first.reason == "all 9 chunks fit into the gaps of a step"


def test_a_reserve_is_kept_of_every_window() -> None:
    found = place(CHAIN, DEPTH - 1, cut(90, 10), 10.0, usable=0.7)
    assert [f.chunks for f in found.filled] == [(0, 1), (2, 3, 4, 5)]
    assert found.left == (6, 7, 8)


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


def test_without_gaps_all_is_left() -> None:
    found = place(FULL, 0, cut(60, 10), 100.0)
    assert (found.filled, found.left, found.share_in_gaps) == ((), tuple(range(6)), 0)
    assert found.reason.startswith("6 of 6 chunks (100% of the bytes) do not fit")


def test_what_does_not_fit_into_the_gaps_is_left() -> None:
    found = place(CHAIN, 0, cut(120, 10), 10.0, usable=1.0)
    assert found.left == (9, 10, 11)
    assert found.share_in_gaps == 0.75
    assert found.reason == "3 of 12 chunks (25% of the bytes) do not fit into the gaps of a step"


def test_an_irregular_plan_is_placed_too() -> None:
    plan = rerouted(3, 3, 3, even_chain(2, 2).schedule)
    timeline = evaluate(plan, per_stage(1.0, 1.0, 1.0))
    lanes = range(len(timeline.layout.lanes))
    found = [place(timeline, lane, cut(20, 10), 20.0) for lane in lanes]
    assert min(placement.share_in_gaps for placement in found) > 0.4


# Bad input.


def test_bad_input_is_refused() -> None:
    with pytest.raises(HoldfastError, match="rate = 0"):
        place(FULL, 0, (1,), 0)
    with pytest.raises(HoldfastError, match="a chunk of 0 bytes"):
        place(FULL, 0, (1, 0), 1.0)
