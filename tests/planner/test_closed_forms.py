"""Closed forms against the timeline: exact where they say so, a bound everywhere else."""

import random
import statistics
from collections.abc import Callable
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Hop, Plan, Schedule, Stage, whole_route
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.timeline import evaluate
from holdfast.plan.units import TensorSpec, Unit
from holdfast.planner.closed_forms import (
    closed_time,
    gpipe,
    one_f_one_b,
    rounds,
    steady_period,
    zero_bubble,
)
from holdfast.schedule.orders import num_left_over
from support.random_plans import plans
from support.small_plans import (
    Triple,
    blocks,
    chain_of,
    delays,
    even_chain,
    per_stage,
    profiles_for,
    rerouted,
    v_shaped,
)

EXACT = 1e-12
"""Relative: the two add the same numbers in another order."""

times = st.floats(0.125, 8.0)
triples = st.tuples(times, times, times)


def timeline_time(
    costs: list[Triple], num_micro_batches: int, delay: list[float], kind: str = "1f1b"
) -> float:
    plan = chain_of(costs, num_micro_batches, kind)
    return evaluate(plan, Profile(links=delays(delay))).iteration_time


def form_time(
    costs: list[Triple],
    num_micro_batches: int,
    delay: list[float],
    form: Callable[..., float] = one_f_one_b,
) -> float:
    forward = [f for f, _, _ in costs]
    backward = [i + w for _, i, w in costs]
    return form(forward, backward, num_micro_batches, delay)


# GPipe.


@settings(max_examples=100)
@given(
    st.lists(triples, min_size=1, max_size=6),
    st.integers(1, 10),
    st.lists(st.floats(0, 4), min_size=5, max_size=5),
)
def test_gpipe_is_exact_for_any_stages_and_latencies(
    costs: list[Triple], total: int, delay: list[float]
) -> None:
    delay = delay[: len(costs) - 1]
    expected = timeline_time(costs, total, delay, "gpipe")
    assert form_time(costs, total, delay, gpipe) == pytest.approx(expected, rel=EXACT)


# 1F1B.


def test_even_stages_are_exact() -> None:
    for depth, total in product(range(1, 9), range(1, 25)):
        assert one_f_one_b([1.0] * depth, [2.0] * depth, total) == (total + depth - 1) * 3.0
        assert gpipe([1.0] * depth, [2.0] * depth, total) == (total + depth - 1) * 3.0


@settings(max_examples=200)
@given(
    depth=st.integers(1, 8),
    extra=st.integers(0, 16),
    slow=st.integers(0, 7),
    factor=st.floats(1.5, 4.0),
    cost=triples,
)
def test_one_slow_stage_is_exact(
    depth: int, extra: int, slow: int, factor: float, cost: Triple
) -> None:
    costs = [cost] * depth
    costs[slow % depth] = tuple(factor * time for time in cost)
    total = depth + extra
    expected = timeline_time(costs, total, [])
    assert form_time(costs, total, []) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    costs=st.lists(triples, min_size=1, max_size=7),
    total=st.integers(1, 20),
    delay=st.one_of(st.just([0.0] * 6), st.lists(st.floats(0, 6), min_size=6, max_size=6)),
)
def test_1f1b_is_never_above_the_timeline(
    costs: list[Triple], total: int, delay: list[float]
) -> None:
    delay = delay[: len(costs) - 1]
    expected = timeline_time(costs, total, delay)
    assert form_time(costs, total, delay) <= expected * (1 + 1e-9)


def draw_case(family: str, chance: random.Random) -> tuple[list[Triple], int, list[float]]:
    depth = chance.randint(2, 8)
    total = chance.randint(1, depth) if family == "few" else chance.randint(depth, 24)
    costs: list[Triple] = []
    for _ in range(depth):
        forward = chance.uniform(0.5, 2.0)
        ratio = {"recompute": 1.5, "twice": 1.0}.get(family) or chance.uniform(0.25, 2.0)
        costs.append((forward, ratio * forward, ratio * forward))
    longest = 1.0 if family == "messages" else 0.0
    latencies = [chance.uniform(0.0, longest) for _ in range(depth - 1)]
    return costs, total, latencies


FAMILIES = {
    # family: (mean error, largest error) in per cent that are allowed
    "free": (0.25, 5.0),
    "twice": (0.25, 5.0),
    "recompute": (0.25, 5.0),
    "few": (0.3, 5.0),
    "messages": (1.5, 15.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_1f1b_is_near_the_timeline(family: str) -> None:
    """Random stages, as they occur: the same 200 cases every time."""
    chance = random.Random(f"closed forms, {family}")
    errors: list[float] = []
    for _ in range(200):
        costs, total, delay = draw_case(family, chance)
        expected = timeline_time(costs, total, delay)
        errors.append(100 * (1 - form_time(costs, total, delay) / expected))
    mean, largest = FAMILIES[family]
    assert min(errors) >= -1e-9
    assert statistics.mean(errors) <= mean
    assert max(errors) <= largest


# The steady state.


def test_even_stages_pay_most_of_a_round_trip() -> None:
    for depth in range(1, 7):
        period = steady_period([1.0] * depth, [2.0] * depth, [0.5] * (depth - 1))
        assert period == pytest.approx(3.0 + 2 * 0.5 * (depth - 1) / depth)
        assert steady_period([1.0] * depth, [2.0] * depth) == 3.0


def test_more_in_flight_pays_less() -> None:
    forward, backward, delay = [1.0] * 4, [2.0] * 4, [0.75] * 3
    plain = steady_period(forward, backward, delay)
    assert plain == steady_period(forward, backward, delay, [4, 3, 2, 1])
    more = steady_period(forward, backward, delay, [7, 5, 3, 1])
    assert more < plain
    assert steady_period(forward, backward, delay, [10, 7, 4, 1]) == 3.0


@pytest.mark.slow
@settings(max_examples=30)
@given(
    costs=st.lists(triples, min_size=1, max_size=4),
    delay=st.lists(st.floats(0, 3), min_size=3, max_size=3),
)
def test_the_timeline_settles_to_the_period(costs: list[Triple], delay: list[float]) -> None:
    """Rounds between two stages take 2, 3 or 4 micro-batches: 12 more are whole rounds of all."""
    delay = delay[: len(costs) - 1]
    period = form_period(costs, delay)
    many, more = (timeline_time(costs, total, delay) for total in (120, 132))
    assert (more - many) / 12 == pytest.approx(period, rel=1e-6)


def form_period(costs: list[Triple], delay: list[float]) -> float:
    return steady_period([f for f, _, _ in costs], [i + w for _, i, w in costs], delay)


# Rounds and split backwards.


@pytest.mark.parametrize("kind", ["interleaved", "gpipe"])
def test_rounds_are_exact(kind: str) -> None:
    for depth, virtual, total in product(range(1, 6), (1, 2, 3), range(1, 16)):
        if kind == "interleaved" and num_left_over(total, depth):
            continue
        plan = even_chain(depth, total, kind, virtual)
        expected = evaluate(plan, per_stage(1.0, 0.5, 1.5)).iteration_time
        assert rounds(depth, virtual, total, 1.0, 2.0) == expected


SPLITS = [(1.0, 1.0, 1.0), (2.0, 1.0, 0.5), (1.0, 3.0, 2.0), (2.0, 0.5, 4.0), (0.5, 1.0, 0.0)]


@pytest.mark.parametrize("cost", SPLITS)
def test_zero_bubble_is_exact(cost: Triple) -> None:
    for depth, virtual, total in product(range(1, 6), (1, 2, 3), range(1, 16)):
        form = zero_bubble(depth, virtual, total, *cost)
        if virtual > 1 and total < depth:
            assert form is None
        elif not num_left_over(total, depth) or virtual == 1:
            plan = even_chain(depth, total, "zero-bubble", virtual)
            assert form == evaluate(plan, per_stage(*cost)).iteration_time


def test_zero_bubble_where_weights_fit_is_zb_h1() -> None:
    for depth in range(1, 9):
        for total in range(depth, 17):
            f, i, w = 2.0, 3.0, 1.5
            assert zero_bubble(depth, 1, total, f, i, w) == total * 6.5 + (depth - 1) * (f + i - w)


# Whole plans.


@pytest.mark.slow
@settings(max_examples=300)
@given(
    plans.flatmap(lambda plan: st.tuples(st.just(plan), profiles_for(plan))),
    st.sampled_from([Link(), Link(latency=0.5), Link(0.125, 64.0)]),
)
def test_no_plan_beats_its_closed_time(priced: tuple[Plan, Profile], reduce: Link) -> None:
    plan, profile = priced
    profile = msgspec.structs.replace(profile, reduce=reduce, agree=0.25, optimizer=0.5)
    form = closed_time(plan, profile)
    assert form is None or form <= evaluate(plan, profile).iteration_time * (1 + 1e-9)


def test_even_plans_of_every_kind_are_exact() -> None:
    for kind, virtual in product(["gpipe", "1f1b", "interleaved", "zero-bubble"], (1, 2)):
        plan = regular_plan(
            blocks(8), replicas=3, stages=4, virtual=virtual, micro_batches=24, schedule=kind
        )
        profile = Profile(agree=0.5, optimizer=1.0)
        assert closed_time(plan, profile) == evaluate(plan, profile).iteration_time


def test_the_slowest_replica_counts() -> None:
    plan = regular_plan(blocks(4), replicas=4, stages=4, micro_batches=32)
    profile = Profile(slow={"r2.s3": 2.0})
    assert closed_time(plan, profile) == evaluate(plan, profile).iteration_time == 9.0 + 8 * 6.0


def test_the_last_reduction_cannot_hide() -> None:
    """Messages of a bucket are short beside the computations: only the first unit's is seen."""
    units = [Unit(f"u{n}", (TensorSpec(f"u{n}.w", (8,)),)) for n in range(4)]
    plan = regular_plan(units, replicas=2, stages=2, micro_batches=8)
    profile = Profile(reduce=Link(0.125, 64.0))
    expected = (4 + 1) * 6.0 + 2 * 0.5 * 32 / 64 + 2 * 0.125
    assert closed_time(plan, profile) == evaluate(plan, profile).iteration_time == expected


def test_a_split_backward_may_end_before_the_rest() -> None:
    """The first stage is done early, and its heavy bucket is reduced beside the last stage."""
    units = [
        Unit("heavy", (TensorSpec("heavy.w", (8,)),), 2.0, 0.5, 4.0),
        Unit("light", (), 2.0, 0.5, 4.0),
    ]
    plan = regular_plan(units, replicas=2, stages=2, micro_batches=6, schedule="zero-bubble")
    profile = Profile(reduce=Link(bandwidth=32.0))
    assert closed_time(plan, profile) == evaluate(plan, profile).iteration_time == 21.5


def test_equal_weights_are_seen_through_uneven_ones_are_not() -> None:
    plan = even_chain(3, 4)
    assert closed_time(plan, Profile(workload=(2.0,) * 4)) == 2 * 18.0
    assert closed_time(plan, Profile(workload=(2.0, 1.0, 1.0, 1.0))) is None
    two = regular_plan(blocks(3), replicas=2, stages=3, micro_batches=8)
    assert closed_time(two, Profile(workload=(1.0,) * 4 + (2.0,) * 4)) == 2 * 18.0


def test_parts_of_stages_count_as_what_they_are() -> None:
    """Both micro-batches leave the first stage early, after one of its two units."""
    stages = (Stage(0, 0, 0, 2, ("n0.g0",)), Stage(0, 1, 1, 3, ("n0.g1",)))
    short = (Hop("r0.s0", 0, 1), Hop("r0.s1", 1, 3))
    plan = Plan(blocks(3), stages, (short, short))
    assert closed_time(plan) == evaluate(plan).iteration_time == 3.0 + 2 * 6.0
    mixed = Plan(blocks(3), stages, (short, (Hop("r0.s0", 0, 2), Hop("r0.s1", 2, 3))))
    assert closed_time(mixed) is None


def test_an_idle_replica_takes_no_time() -> None:
    stages = (Stage(0, 0, 0, 1, ("n0.g0",)), Stage(1, 0, 0, 1, ("n0.g1",)))
    plan = Plan(blocks(1), stages, (whole_route(stages[:1]),) * 3)
    assert closed_time(plan) == 9.0


NONE = {
    "crossing routes": (rerouted(3, 2, 2, Schedule()), Profile()),
    "a V": (v_shaped(2, 4), Profile()),
    "more in flight": (
        regular_plan(blocks(2), stages=2, schedule=Schedule(extra_in_flight=1)),
        Profile(),
    ),
    "explicit lines": (
        regular_plan(
            blocks(1), micro_batches=1, schedule=Schedule("explicit", orders=(("n0.g0", "F0 B0"),))
        ),
        Profile(),
    ),
    "rounds that do not fill": (even_chain(4, 9, "interleaved", 2), Profile()),
    "uneven stages in rounds": (
        even_chain(2, 2, "interleaved", 2),
        Profile(unit={"block.0": UnitCost(1.0, 1.0, 2.0)}),
    ),
    "messages in rounds": (even_chain(2, 2, "interleaved", 2), Profile(within_node=Link(1.0))),
    "uneven stages, split": (even_chain(2, 2, "zero-bubble"), Profile(slow={"r0.s1": 2.0})),
    "few micro-batches in split rounds": (even_chain(3, 2, "zero-bubble", 2), Profile()),
}


@pytest.mark.parametrize("case", NONE)
def test_where_no_form_holds_there_is_no_answer(case: str) -> None:
    assert closed_time(*NONE[case]) is None
