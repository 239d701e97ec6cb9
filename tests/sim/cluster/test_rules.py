"""The kinds of policies: who restarts, who loses replicas, who adapts."""

import pytest

from holdfast.sim.cluster.events import KILLED
from holdfast.sim.cluster.health import ClusterDamage, ClusterHealth
from holdfast.sim.cluster.pace import StepTimes
from holdfast.sim.cluster.policy import Card, PolicyConstants
from holdfast.sim.cluster.rules import (
    HEALTHY,
    WAIT,
    Adaptive,
    Option,
    Replicas,
    Restart,
    by_window,
)
from holdfast.sim.cluster.strategies import drop, reroute, shorten
from support.sim_jobs import facts, small_job

PACE = StepTimes(small_job(replicas=2, chains=2))
CARD = Card(name="x", rule="r", source="s", limits="l")
COSTS = PolicyConstants(
    exit_ms=1, hang_ms=1, schedule_ms=5, load_ms=7, groups_ms=11, move_ms=13, join_ms=17
)


def lost(*devices: int) -> ClusterDamage:
    health = ClusterHealth(PACE.job)
    health.lose(devices, KILLED)
    return health.situation()


def test_a_restart_stops_everybody_and_goes_back():
    policy = Restart(PACE, CARD, COSTS, Option("drop", drop, False))
    decision = policy.decide(facts(PACE.job, lost(0)))
    assert decision.strategy == "restart"
    assert decision.rollback
    assert decision.stall == (("scheduling", 5), ("loading", 7), ("groups", 11))
    assert decision.rate == pytest.approx(11 / 14)
    assert [policy.is_idle(lost(0), pipeline, 3) for pipeline in range(4)] == [True, *[False] * 3]


def test_a_restart_takes_replaced_nodes_along():
    policy = Restart(PACE, CARD, COSTS, Option("drop", drop, False))
    given = facts(PACE.job, lost(0), num_replaceable=1, after_rejoin=ClusterDamage())
    decision = policy.decide(given)
    assert decision.rejoin_now
    assert decision.rate == 1.0
    later = facts(PACE.job, lost(0), "returned", num_replaceable=1, after_rejoin=ClusterDamage())
    assert policy.decide(later).stall
    assert not policy.decide(facts(PACE.job, lost(0), "returned")).stall


def test_a_replica_is_lost_as_a_whole():
    policy = Replicas(PACE, CARD, COSTS)
    decision = policy.decide(facts(PACE.job, lost(0)))
    assert decision.rate == 0.5
    assert decision.join_ms == 17
    assert [policy.is_idle(lost(0), p, 0) for p in range(4)] == [True, True, False, False]
    assert policy.decide(facts(PACE.job, lost(0, 9))).rate == 0.5
    assert policy.decide(facts(PACE.job, lost(0, 16))).rate == 0.0
    assert policy.decide(facts(PACE.job, ClusterDamage(), "joined")).strategy == HEALTHY


def adaptive(score, **changes) -> Adaptive:
    options = [Option("re-route", reroute, False), Option("shorter", shorten, True)]
    return Adaptive(PACE, CARD, PolicyConstants(exit_ms=1, hang_ms=1, **changes), options, score)


def test_a_dear_change_pays_only_if_it_lasts():
    policy = adaptive(by_window, move_ms=60_000)
    often = policy.decide(facts(PACE.job, lost(0, 1), mtbf_ms=60_000.0))
    assert often.strategy == "re-route"
    assert "shorter" in often.reason
    scores = [by_window(0.9, 10, 20.0), by_window(1.0, 21, 20.0)]
    assert scores == [pytest.approx(0.45), 0.0]


def test_the_rest_of_a_broken_group_is_idle_or_not():
    options = [Option("re-route", reroute, False)]
    whole = Adaptive(PACE, CARD, COSTS, options)
    assert [whole.is_idle(lost(0), 0, stage) for stage in range(4)] == [True, *[False] * 3]
    shrinking = Adaptive(PACE, CARD, COSTS, options, whole_seats=False)
    assert not shrinking.is_idle(lost(0), 0, 0)


def test_nothing_possible_means_waiting():
    policy = Adaptive(PACE, CARD, COSTS, [Option("re-route", reroute, False)])
    everywhere = lost(0, 8, 16, 24)
    decision = policy.decide(facts(PACE.job, everywhere))
    assert (decision.strategy, decision.rate) == (WAIT, 0.0)
    nobody = Adaptive(PACE, CARD, COSTS, [])
    assert nobody.decide(facts(PACE.job, lost(0))).strategy == WAIT


def test_who_does_not_see_slow_devices_waits_for_them():
    health = ClusterHealth(PACE.job)
    health.slow_down((0,), 2.0)
    blind = Adaptive(PACE, CARD, COSTS, [Option("shorter", shorten, True)])
    seeing = Adaptive(
        PACE,
        CARD,
        PolicyConstants(exit_ms=1, hang_ms=1, slow_steps=3),
        [Option("shorter", shorten, True)],
    )
    slow = facts(PACE.job, health.situation(), "slowed")
    assert blind.decide(slow).rate < seeing.decide(slow).rate
    assert blind.decide(slow).rate_at_full_speed == 1.0


def test_stalls_depend_on_what_happened():
    policy = adaptive(by_window, plan_ms=3, groups_ms=5, join_stall_ms=9)
    parts = [dict(policy.decide(facts(PACE.job, lost(0), what)).stall) for what in
             ("failed", "joined", "returned", "failed unused")]  # fmt: skip
    assert parts[0].keys() == {"planning", "groups", "lost work"}
    assert parts[1:] == [{"joining": 9}, {}, {}]
