"""The closed form of 1F1B against the timeline: exact where it says so, a bound everywhere else."""

import random
import statistics
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from holdfast.schedule.one_f_one_b import one_f_one_b_time, steady_period
from support.small_plans import Triple, chain_of, delays

times = st.floats(0.125, 8.0)
triples = st.tuples(times, times, times)


def timeline_time(costs: list[Triple], num_micro_batches: int, delay: list[float]) -> float:
    plan = chain_of(costs, num_micro_batches)
    return evaluate(plan, Profile(links=delays(delay))).iteration_time


def form_time(costs: list[Triple], num_micro_batches: int, delay: list[float]) -> float:
    forward = [f for f, _, _ in costs]
    backward = [i + w for _, i, w in costs]
    return one_f_one_b_time(forward, backward, num_micro_batches, delay)


def test_even_stages_are_exact() -> None:
    for depth, total in product(range(1, 9), range(1, 25)):
        assert one_f_one_b_time([1.0] * depth, [2.0] * depth, total) == (total + depth - 1) * 3.0


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
