"""Step times against the timeline and against brute force."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.timeline import evaluate
from holdfast.plan.units import Unit
from holdfast.sim.cluster.pace import NEVER, StepTimes, split_layers
from support.sim_jobs import small_job


def test_the_healthy_step_is_the_timelines():
    job = small_job()
    units = [Unit(f"u{i}", (), 10 / 3, 10 / 3, 10 / 3) for i in range(8)]
    plan = regular_plan(units, replicas=4, stages=4, micro_batches=32)
    assert StepTimes(job).healthy_ms == pytest.approx(evaluate(plan).iteration_time)


def test_equal_shares_are_rounded_up():
    pace = StepTimes(small_job())
    assert pace.equal_ms([(pace.whole, 4)]) == pace.healthy_ms
    assert pace.equal_ms([(pace.whole, 3)]) == pace.chain_ms(pace.whole, 11)
    assert pace.equal_ms([]) == NEVER


def brute_force(pace: StepTimes, kinds: list[tuple[float, ...]]) -> float:
    best = NEVER
    for counts in product(range(pace.total + 1), repeat=len(kinds)):
        if sum(counts) == pace.total:
            longest = max(pace.chain_ms(k, n) for k, n in zip(kinds, counts, strict=True))
            best = min(best, longest)
    return best


@given(st.lists(st.lists(st.floats(1, 9), min_size=2, max_size=2), min_size=1, max_size=3))
def test_balanced_shares_are_the_best_possible(rows):
    kinds = [tuple(row) for row in rows]
    pace = StepTimes(small_job(replicas=len(kinds), stages=2, micro_batches=4))
    found = pace.balanced_ms([(kind, 1) for kind in kinds])
    assert found == pytest.approx(brute_force(pace, kinds), rel=1e-6)


def test_counts_stand_for_equal_pipelines():
    pace = StepTimes(small_job(replicas=6))
    slow = tuple(2 * time for time in pace.whole)
    listed = [(pace.whole, 1)] * 5 + [(slow, 1)]
    assert pace.balanced_ms(listed) == pytest.approx(pace.balanced_ms([(pace.whole, 5), (slow, 1)]))
    assert pace.balanced_ms([]) == NEVER


@given(st.lists(st.sampled_from([1.0, 1.9, 3.66, 7.22]), min_size=1, max_size=3), st.integers(1, 9))
def test_layers_are_split_exactly(times, num_layers):
    counts = split_layers(times, num_layers)
    assert sum(counts) == num_layers
    found = max(n * time for n, time in zip(counts, times, strict=True))
    best = min(
        max(n * time for n, time in zip(option, times, strict=True))
        for option in product(range(num_layers + 1), repeat=len(times))
        if sum(option) == num_layers
    )
    assert found == pytest.approx(best)


def test_the_published_malleus_plan():
    alpha = {8: 1.0, 4: 1.90, 2: 3.66, 1: 7.22}
    assert split_layers([alpha[k] for k in (1, 1, 4, 8, 8, 8, 8)], 80) == (2, 2, 8, 17, 17, 17, 17)
    assert split_layers([alpha[k] for k in (2, 2, 4, 8, 8)], 80) == (7, 7, 14, 26, 26)


def test_seats_take_the_pace_of_their_slowest_device():
    pace = StepTimes(small_job())
    assert pace.seat_ms((1.0, 1.0), 2) == pytest.approx(20.0)
    assert pace.seat_ms((1.0, 0.5), 2) == pytest.approx(40.0)
    assert pace.seat_ms((1.0, 0.5), 2, 1) == pytest.approx(20.0 * pace.job.tensor_time(1))
    assert pace.seat_ms((), 2) == NEVER
    assert pace.as_is(((1, (1.0,)),))[1] == NEVER
    assert pace.rate(pace.healthy_ms) == 1.0
