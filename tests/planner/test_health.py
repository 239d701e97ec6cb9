"""Facts about workers, and rates with a prior."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.planner.health import FailureRates, health_of, seen_from
from support.planning import small_plan

PLAN = small_plan(2, 2, 2)


def test_names_nodes_and_roles_are_understood():
    health = health_of(PLAN, ["n0.g1", "r1.s1"], {"n1": 2.0}, ["n7.g0"])
    assert health.dead == ("n0.g1", "n1.g2", "n1.g3")
    assert health.slow == (("n1.g0", 2.0), ("n1.g1", 2.0))
    assert health.spares == ("n7.g0",)


def test_spares_can_be_dead_and_slow():
    health = health_of(PLAN, ["n7.g0"], {"n7.g1": 3.0}, ["n7.g0", "n7.g1"])
    assert health.dead == ("n7.g0",)
    assert health.spares == ("n7.g1",)
    assert health.slow_down("n7.g1") == 3.0


def test_capacity_counts_in_healthy_workers():
    health = health_of(PLAN, ["n0.g0"], {"n0.g1": 2.0})
    assert health.capacity(PLAN.workers) == 6.5


def test_nonsense_is_refused():
    with pytest.raises(HoldfastError, match="names no worker"):
        health_of(PLAN, ["n9"])
    with pytest.raises(HoldfastError, match="at least 1 is needed"):
        health_of(PLAN, [], {"n0": 0.5})


def test_a_cluster_seen_from_a_plan():
    workers = (*PLAN.workers, "n7.g0", "n7.g1")
    health = seen_from(PLAN, workers, {"n7.g1", "n0.g0"}, {"n0.g0": 2.0, "n0.g1": 2.0})
    assert health.spares == ("n7.g0",)
    assert health.dead == ("n0.g0", "n7.g1")
    assert health.slow == (("n0.g1", 2.0),)


def test_rates_start_at_the_prior_and_follow_what_is_seen():
    prior = FailureRates()
    assert prior.per_device == pytest.approx(1 / (50_000 * 3600))
    seen = FailureRates(failures=99, device_time=99 * 3600.0 * 1000)
    assert seen.per_device == pytest.approx(1 / (3600 * 1000), rel=0.5)
    assert seen.change(10) > prior.change(10)
