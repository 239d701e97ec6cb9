"""The timeline against a second one, against known cases, and orders it refuses."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.lanes import LaneOrder, layout_of
from holdfast.plan.memory import peak_in_flight
from holdfast.plan.plan import Plan, Schedule, Stage, whole_route
from holdfast.plan.profile import Link, Profile, UnitCost, resolve
from holdfast.plan.timeline import Span, Timeline, compile_program, evaluate, run
from holdfast.plan.units import Unit
from holdfast.schedule.orders import compute_orders
from support.random_plans import plans
from support.slow_timeline import slow_times
from support.small_plans import (
    blocks,
    chain_of,
    delays,
    even_chain,
    per_stage,
    profiles_for,
    shared_plans,
)

any_plan = st.one_of(plans, shared_plans())
priced_plans = any_plan.flatmap(lambda plan: st.tuples(st.just(plan), profiles_for(plan)))


# Against the second implementation.


@pytest.mark.slow
@settings(max_examples=300)
@given(priced_plans)
def test_the_obvious_timeline_agrees(priced: tuple[Plan, Profile]) -> None:
    plan, profile = priced
    timeline = evaluate(plan, profile)
    orders = compute_orders(timeline.layout, profile)
    expected = slow_times(timeline.layout, orders, profile)
    program = timeline.program
    assert sorted(program.ops) == sorted(expected)
    for number, op in enumerate(program.ops):
        assert (timeline.start[number], timeline.end[number]) == pytest.approx(expected[op])


@pytest.mark.slow
@settings(max_examples=200)
@given(priced_plans)
def test_what_every_timeline_keeps(priced: tuple[Plan, Profile]) -> None:
    plan, profile = priced
    timeline = evaluate(plan, profile)
    place = {number: at for at, number in enumerate(timeline.sequence)}
    assert sorted(timeline.sequence) == list(range(len(timeline.program.ops)))
    for lane, order in enumerate(timeline.program.lanes):
        for before, after in pairwise(order):
            assert timeline.end[before] <= timeline.start[after]
            assert place[before] < place[after]
        idle = sum(end - start for start, end in timeline.gaps(lane))
        assert idle + timeline.busy(lane) == pytest.approx(timeline.iteration_time)
        assert all(start < end for start, end in timeline.gaps(lane))
    for number, needed in enumerate(timeline.program.needs):
        if needed >= 0:
            assert timeline.end[needed] <= timeline.arrive[needed] <= timeline.start[number]
            assert place[needed] < place[number]
    assert 0.0 <= timeline.bubble_fraction < 1.0


@pytest.mark.slow
@settings(max_examples=200)
@given(priced_plans)
def test_the_critical_path_explains_the_time(priced: tuple[Plan, Profile]) -> None:
    plan, profile = priced
    timeline = evaluate(plan, profile)
    path = timeline.critical_path()
    waits = [after.start - before.end for before, after in pairwise(path)]
    assert path[0].start == 0.0
    assert path[-1].end == timeline.iteration_time
    assert all(wait >= 0.0 for wait in waits)
    length = sum(span.end - span.start for span in path) + sum(waits)
    assert length == pytest.approx(timeline.iteration_time)
    for (before, after), wait in zip(pairwise(path), waits, strict=True):
        # Time passes between two computations only where a message travels.
        same_message = before.micro_batch == after.micro_batch and before.stage != after.stage
        assert wait == 0.0 or same_message


# Known cases.


PAIRS = [(1.0, 2.0), (1.0, 1.0), (2.0, 3.0), (3.0, 1.0), (0.5, 1.25)]


def windows(depth: int, stage: int, total: float, f: float, b: float) -> list[tuple[float, float]]:
    """Where a stage of plain 1F1B idles: head, middle, one gap before each last backward, tail."""
    behind = depth - 1 - stage
    last = total - stage * b
    gaps = [(0.0, stage * f), (depth * f, depth * f + behind * b)]
    for number in range(behind, 0, -1):
        backward = last - number * b - (number - 1) * f
        gaps.append((backward - f, backward))
    gaps.append((last, total))
    return [(start, end) for start, end in gaps if start < end]


@pytest.mark.parametrize(("f", "b"), PAIRS)
def test_1f1b_takes_its_time_and_idles_in_its_windows(f: float, b: float) -> None:
    for depth in range(1, 9):
        for total in range(depth, 25):
            timeline = evaluate(even_chain(depth, total), per_stage(f, b / 2, b / 2))
            time = (total + depth - 1) * (f + b)
            assert timeline.iteration_time == time
            for stage in range(depth):
                assert timeline.gaps(stage) == windows(depth, stage, time, f, b)
                assert timeline.busy(stage) == total * (f + b)
            share = (depth - 1) / (total + depth - 1)
            assert timeline.bubble_fraction == pytest.approx(share)


def test_the_windows_of_the_first_and_the_last_stage() -> None:
    timeline = evaluate(even_chain(4, 8), per_stage(1.0, 1.0, 1.0))
    assert timeline.iteration_time == 33.0
    assert timeline.gaps(0) == [(4.0, 10.0), (24.0, 25.0), (27.0, 28.0), (30.0, 31.0)]
    assert timeline.gaps(3) == [(0.0, 3.0), (27.0, 33.0)]


def test_peak_in_flight_of_1f1b() -> None:
    for depth in range(1, 9):
        for total in range(1, 25):
            timeline = evaluate(even_chain(depth, total))
            peaks = [peak_in_flight(timeline, stage) for stage in range(depth)]
            assert peaks == [min(depth - stage, total) for stage in range(depth)]


def test_a_slow_worker_sets_the_pace() -> None:
    """Stage 1 takes 6 instead of 3 and waits once, for its first backward: 6 below, 4 to do."""
    plan = regular_plan(blocks(4), replicas=2, stages=4, micro_batches=16)
    slow = evaluate(plan, Profile(slow={"r0.s1": 2.0}))
    assert evaluate(plan).iteration_time == 33.0
    assert slow.iteration_time == 3.0 + 8 * 6.0 + 2.0
    path = slow.critical_path()
    assert sum(span.end - span.start for span in path if span.stage == "r0.s1") > 0.8 * 53.0
    assert {span.stage for span in path} == {"r0.s0", "r0.s1", "r0.s2", "r0.s3"}
    assert sum(end - start for start, end in slow.gaps(5)) == 53.0 - 24.0


def test_messages_take_latency_and_queue_for_bandwidth() -> None:
    """Two stages; the first makes messages faster than the link can carry them."""
    plan = chain_of([(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)], 3, "gpipe")
    link = {"n0>n1": Link(latency=0.5, bandwidth=4.0)}  # 16 bytes: 4 each
    timeline = evaluate(plan, Profile(links=link))
    forwards = [span.start for span in timeline.spans(1) if span.kind == "F"]
    assert forwards == [5.5, 9.5, 13.5]
    assert timeline.iteration_time == 14.5 + 3 * 2.0 + 2.0


def test_every_worker_of_a_wide_stage_gets_the_whole_message() -> None:
    """One sender, two receivers on its node's link: twice the time, and the longer latency."""
    units = (Unit("a", boundary_bytes=16), Unit("b"))
    stages = (
        Stage(0, 0, 0, 1, ("n0.g0",)),
        Stage(0, 1, 1, 2, ("n1.g0", "n1.g1"), (("tensor", 2),)),
    )
    plan = Plan(units, stages, (whole_route(stages),))
    profile = Profile(between_nodes=Link(bandwidth=4.0), links={"n0.g0>n1.g1": Link(latency=1.0)})
    timeline = evaluate(plan, profile)
    assert timeline.spans(1)[0].start == 1.0 + 2 * 16 / 4.0 + 1.0
    assert timeline.iteration_time == 10.0 + 3.0 / 2 + 16 / 4.0 + 2.0


def test_recorded_durations_are_replayed() -> None:
    layout = layout_of(even_chain(2, 2))
    program = compile_program(layout, compute_orders(layout))
    durations = {("F", 0, 0): 1.0, ("F", 0, 1): 5.0, ("F", 1, 0): 2.0, ("F", 1, 1): 1.0}
    costs = resolve(layout, Profile())
    timeline = run(program, [durations.get(op, 1.0) for op in program.ops], costs)
    assert [(span.kind, span.start) for span in timeline.spans(1)] == [
        ("F", 1.0),
        ("B", 3.0),
        ("F", 6.0),
        ("B", 7.0),
    ]
    assert timeline.iteration_time == 9.0


def test_a_stage_over_two_lanes_needs_both() -> None:
    """n0.g1 also serves alone: the wide stage starts when both its workers are free."""
    wide = Stage(0, 0, 0, 1, ("n0.g0", "n0.g1"), (("tensor", 2),))
    alone = Stage(1, 0, 0, 1, ("n0.g1",))
    plan = Plan(blocks(1), (wide, alone), (whole_route((wide,)), whole_route((alone,))))
    timeline = evaluate(plan)
    first, second = (timeline.spans(lane) for lane in (0, 1))
    assert [span for span in second if span.stage == "r0.s0"] == first
    assert timeline.iteration_time == 3.0 / 2 + 3.0
    assert timeline.busy(0) == 3.0 / 2


def test_the_critical_path_follows_the_later_of_two_lanes() -> None:
    wide = Stage(0, 0, 0, 1, ("n0.g0", "n0.g1"), (("tensor", 2),))
    alone = Stage(1, 0, 0, 1, ("n0.g1",))
    routes = (*[whole_route((wide,))] * 2, whole_route((alone,)))
    plan = Plan(blocks(1), (wide, alone), routes)
    first: LaneOrder = [("F", 0, 0), ("B", 0, 0)]
    last: LaneOrder = [("F", 0, 1), ("B", 0, 1)]
    between: LaneOrder = [("F", 1, 2), ("B", 1, 2)]
    timeline = evaluate(plan, orders=[first + last, first + between + last])
    path = timeline.critical_path()
    assert [(span.kind, span.micro_batch) for span in path] == [
        ("F", 0),
        ("B", 0),
        ("F", 2),
        ("B", 2),
        ("F", 1),
        ("B", 1),
    ]
    assert sum(span.end - span.start for span in path) == timeline.iteration_time == 6.0


def test_the_step_ends_with_agreement_and_optimizer() -> None:
    timeline = evaluate(even_chain(2, 2), Profile(agree=0.5, optimizer=2.0))
    assert timeline.epilogue.computed == 9.0
    assert timeline.iteration_time == 11.5
    assert timeline.spans(0)[-1] == Span(9.5, 11.5, "STEP", "", -1)
    assert timeline.gaps(0)[-1] == (9.0, 9.5)
    assert timeline.busy(0) == 8.0


def test_times_do_not_depend_on_other_replicas() -> None:
    """Each replica of a plan with twenty is timed as it is alone."""
    costs = [(1.0, 0.5, 2.0), (0.25, 1.0, 1.0), (3.0, 1.0, 0.5)]
    alone = evaluate(chain_of(costs, 5))
    units = [Unit(f"block.{n}", (), *cost) for n, cost in enumerate(costs)]
    many = evaluate(regular_plan(units, replicas=20, stages=3, micro_batches=100))
    for replica in range(20):
        for stage in range(3):
            assert many.gaps(3 * replica + stage) == alone.gaps(stage)


def test_one_unit_without_micro_batches_takes_no_time() -> None:
    plan = msgspec.structs.replace(even_chain(2, 1), routes=())
    timeline = evaluate(plan)
    assert timeline.iteration_time == 0.0
    assert timeline.bubble_fraction == 0.0
    assert timeline.critical_path() == []


def test_a_worker_profile_is_shared_between_its_stages() -> None:
    profile = Profile(worker=UnitCost(2.0, 2.0, 2.0))
    plan = even_chain(2, 4, "interleaved", virtual=2)
    assert evaluate(plan, profile).busy(0) == 4 * 6.0


# Orders that are refused.


def two_stages(*orders: LaneOrder) -> Timeline:
    return evaluate(even_chain(2, 2), orders=orders)


GOOD: list[LaneOrder] = [
    [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)],
    [("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)],
]


def test_a_good_order_passes() -> None:
    assert two_stages(*GOOD).iteration_time == 9.0


def test_some_backwards_may_be_split_and_others_not() -> None:
    split: LaneOrder = [("F", 1, 0), ("I", 1, 0), ("F", 1, 1), ("W", 1, 0), ("B", 1, 1)]
    assert two_stages(GOOD[0], split).iteration_time == 9.0


REFUSED = {
    "ordered twice": (GOOD[0], [*GOOD[1], ("F", 1, 1)]),
    "comes before what it builds on": (
        GOOD[0],
        [("B", 1, 0), ("F", 1, 0), ("F", 1, 1), ("B", 1, 1)],
    ),
    "W0 on r0.s1 comes before": (
        GOOD[0],
        [("F", 1, 0), ("W", 1, 0), ("I", 1, 0), ("F", 1, 1), ("B", 1, 1)],
    ),
    "has no whole backward on r0.s1": (GOOD[0], GOOD[1][:3]),
    "micro-batch 0 has no whole backward": (
        GOOD[0],
        [("F", 1, 0), ("I", 1, 0), ("F", 1, 1), ("B", 1, 1)],
    ),
    "cyclic wait": (
        GOOD[0],
        [("F", 1, 1), ("B", 1, 1), ("F", 1, 0), ("B", 1, 0)],
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_bad_order_is_refused(words: str) -> None:
    orders = REFUSED[words]
    if words == "cyclic wait":
        # Fine by itself; together with a first stage that wants its answers in turn it blocks.
        first: LaneOrder = [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)]
        orders = (first, orders[1])
    with pytest.raises(HoldfastError, match=words):
        two_stages(*orders)


def test_a_cyclic_wait_says_who_waits_for_what() -> None:
    first: LaneOrder = [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)]
    second: LaneOrder = [("F", 1, 1), ("B", 1, 1), ("F", 1, 0), ("B", 1, 0)]
    with pytest.raises(HoldfastError) as refused:
        two_stages(first, second)
    assert str(refused.value) == (
        "cyclic wait: n0.g0 at B0 on r0.s0 needs B0 on r0.s1; "
        "n0.g1 at F1 on r0.s1 needs F1 on r0.s0"
    )


def test_a_computation_of_no_route_is_refused() -> None:
    plan = msgspec.structs.replace(even_chain(2, 2), schedule=Schedule())
    extra: LaneOrder = [*GOOD[1], ("F", 1, 7)]
    with pytest.raises(HoldfastError, match="9 computations, the routes need 8"):
        evaluate(plan, orders=[GOOD[0], extra])


def test_latencies_reach_both_directions() -> None:
    timeline = evaluate(chain_of([(1.0, 1.0, 1.0)] * 2, 1), Profile(links=delays([0.25])))
    assert timeline.iteration_time == 6.5
