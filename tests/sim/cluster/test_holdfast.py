"""Holdfast's policy: no wait for joiners, state is lost only by losses at one time."""

import pytest

from holdfast.sim.cluster.events import KILLED
from holdfast.sim.cluster.health import ClusterDamage, ClusterHealth
from holdfast.sim.cluster.holdfast import GROUPS_MS, Holdfast, groups_ms, holdfast_careful
from holdfast.sim.cluster.job import make_job
from holdfast.sim.cluster.planning import ClusterModel
from holdfast.sim.cluster.rules import HEALTHY
from support.sim_jobs import facts

MODEL = ClusterModel(make_job("llama-7b", 16, micro_batches=8))


def lost(*devices: int) -> ClusterDamage:
    health = ClusterHealth(MODEL.job)
    health.lose(devices, KILLED)
    return health.situation()


@pytest.fixture(scope="module")
def policy():
    return Holdfast(MODEL)


def test_a_failure_stalls_shortly(policy):
    decision = policy.decide(facts(MODEL.job, lost(0)))
    assert 0.4 < decision.rate <= 1.0
    parts = dict(decision.stall)
    assert parts.keys() <= {"planning", "groups", "moving state", "lost work"}
    assert sum(parts.values()) < 30_000
    assert decision.join_ms == policy.costs.join_ms
    assert not decision.rollback


def test_joiners_stall_nothing(policy):
    decision = policy.decide(facts(MODEL.job, ClusterDamage(), "joined"))
    assert (decision.strategy, decision.stall, decision.rate) == (HEALTHY, (), 1.0)
    assert policy.decide(facts(MODEL.job, lost(0), "joined")).stall == ()


def test_losses_one_after_the_other_lose_no_state(policy):
    both = lost(0, 1, 2, 3, 8, 9, 10)
    later = policy.decide(facts(MODEL.job, both, fresh=lost(10)))
    assert not later.rollback


def test_losses_at_one_time_may(policy):
    gone = lost(0, 1, 2, 3, 8, 9, 10, 11)
    at_once = policy.decide(facts(MODEL.job, gone))
    assert at_once.rollback or at_once.rate == 0.0


def test_slow_and_missing_devices_are_told_apart(policy):
    health = ClusterHealth(MODEL.job)
    health.slow_down((0,), 2.0)
    slow = policy.decide(facts(MODEL.job, health.situation(), "slowed"))
    assert slow.rate_at_full_speed == 1.0 > slow.rate
    health.lose((8,), KILLED)
    mixed = policy.decide(facts(MODEL.job, health.situation()))
    assert 1.0 > mixed.rate_at_full_speed >= mixed.rate


def test_lost_work_is_a_share_of_a_step(policy):
    assert policy.lost_work_ms() <= MODEL.step_ms * 2
    large = Holdfast(ClusterModel(make_job("llama-7b", 1024, micro_batches=8)))
    assert large.lost_work_ms() < policy.lost_work_ms()


def test_the_careful_one_has_the_delays_of_ft_hsdp():
    policy = holdfast_careful(MODEL)
    assert (policy.costs.exit_ms, policy.costs.groups_ms) == (60_000, 120_000)
    assert sum(span for _, span in policy.decide(facts(MODEL.job, lost(0))).stall) > 120_000


def test_orders_take_longer_in_a_larger_cluster_and_groups_do_not():
    assert groups_ms(1) == pytest.approx(GROUPS_MS, abs=1)
    assert groups_ms(2000) - groups_ms(0) == pytest.approx(650, abs=1)
    assert Holdfast(MODEL).costs.groups_ms == groups_ms(MODEL.job.nodes)
