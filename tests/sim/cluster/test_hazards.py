"""Failures from rates."""

from collections import Counter

import pytest

from holdfast.sim.cluster.events import KILLED
from holdfast.sim.cluster.hazards import SLOW_FACTORS, HazardRates, draw_events, kill_events
from support.sim_jobs import HOUR, small_job

JOB = small_job(replicas=64)


def test_equal_seeds_give_equal_events():
    rates = HazardRates(mtbf_ms=HOUR, slow_ms=HOUR)
    assert draw_events(JOB, rates, 50 * HOUR, 7) == draw_events(JOB, rates, 50 * HOUR, 7)
    assert draw_events(JOB, rates, 50 * HOUR, 7) != draw_events(JOB, rates, 50 * HOUR, 8)


def test_the_rate_is_kept():
    events = draw_events(JOB, HazardRates(mtbf_ms=HOUR), 4000 * HOUR, 1)
    assert len(events) == pytest.approx(4000, rel=0.05)
    assert [e.time_ms for e in events] == sorted(e.time_ms for e in events)
    assert all(0 < e.time_ms < 4000 * HOUR for e in events)


def test_fixed_gaps_are_fixed():
    rates = HazardRates(mtbf_ms=HOUR, fixed_gaps=True, causes=(KILLED,), correlated=0.0)
    events = draw_events(JOB, rates, 5 * HOUR, 1)
    assert [e.time_ms for e in events] == [HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR]
    assert all(len(e.devices) == 1 for e in events)


def test_causes_decide_what_is_hit():
    events = draw_events(JOB, HazardRates(mtbf_ms=HOUR), 4000 * HOUR, 1)
    sizes = Counter((e.cause.scope, len(e.devices)) for e in events)
    groups = sum(count for (_, size), count in sizes.items() if size > 2)
    assert sizes["device", 1] > 0.9 * sum(n for (scope, _), n in sizes.items() if scope == "device")
    assert sizes["node", 2] > 0.9 * sum(n for (scope, _), n in sizes.items() if scope == "node")
    assert groups / len(events) == pytest.approx(0.01, abs=0.006)
    assert all((e.last_ms > 0) == e.cause.repair for e in events)


def test_slow_downs_have_their_length_and_factors():
    rates = HazardRates(mtbf_ms=10**9 * HOUR, slow_ms=HOUR)
    events = draw_events(JOB, rates, 5000 * HOUR, 3)
    assert {e.factor for e in events} == set(SLOW_FACTORS)
    mean = sum(e.last_ms for e in events) / len(events)
    assert mean == pytest.approx(72 * 60_000, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_kills_spare_the_last_whole_seat_while_they_can(seed):
    job = small_job(replicas=2)
    events = kill_events(job, HOUR, 8, seed)
    assert [e.time_ms for e in events] == [1 + HOUR * i for i in range(8)]
    hit = {job.seat(e.devices[0]) for e in events}
    assert all(len({p for p, s in hit if s == stage}) < 2 for stage in range(job.stages))
    assert len(kill_events(job, HOUR, job.devices, seed)) == job.devices
