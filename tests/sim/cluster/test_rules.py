"""The kinds of policies: those that restart, lose replicas, or adapt."""

import pytest

from holdfast.planner.peers.system import RecoveryConstants, SystemCard
from holdfast.sim.cluster.events import KILLED
from holdfast.sim.cluster.health import ClusterDamage, ClusterHealth, Hurts
from holdfast.sim.cluster.planning import Advisor, ClusterModel, PlannedThroughput
from holdfast.sim.cluster.rules import HEALTHY, WAIT, Adaptive, Replicas, Restart
from support.sim_jobs import facts, small_job

MODEL = ClusterModel(small_job(replicas=2, chains=2))
JOB = MODEL.job
CARD = SystemCard(name="x", rule="r", source="s", limits="l")
COSTS = RecoveryConstants(
    exit_ms=1, hang_ms=1, schedule_ms=5, load_ms=7, groups_ms=11, move_ms=13, join_ms=17
)


class Share(Advisor):
    """The share of pipelines without a loss; a slow device in one of them halves it. Moves state
    for 13 ms.
    """

    def _decide(self, hurts: Hurts, mtbf_ms: float) -> PlannedThroughput:
        short = [h for h in hurts if any(len(seat) < self.job.tensor for _, seat in h)]
        rate = 1 - len(short) / self.job.pipelines
        rate /= 2 if len(short) < len(hurts) else 1
        return PlannedThroughput("share", "because", rate, 13)


def lost(*devices: int) -> ClusterDamage:
    health = ClusterHealth(JOB)
    health.lose(devices, KILLED)
    return health.situation()


def slowed(*devices: int) -> ClusterDamage:
    health = ClusterHealth(JOB)
    health.slow_down(devices, 2.0)
    return health.situation()


def test_a_restart_stops_all_workers_and_goes_back():
    policy = Restart(Share(MODEL), CARD, COSTS)
    decision = policy.decide(facts(JOB, lost(0)))
    assert decision.strategy == "restart"
    assert decision.rollback
    assert decision.stall == (("scheduling", 5), ("loading", 7), ("groups", 11))
    assert decision.rate == 0.75
    assert [policy.is_idle(lost(0), pipeline, 3) for pipeline in range(4)] == [True, *[False] * 3]


def test_a_restart_takes_replaced_nodes_along():
    policy = Restart(Share(MODEL), CARD, COSTS)
    given = facts(JOB, lost(0), num_replaceable=1, after_rejoin=ClusterDamage())
    decision = policy.decide(given)
    assert decision.rejoin_now
    assert decision.rate == 1.0
    later = facts(JOB, lost(0), "returned", num_replaceable=1, after_rejoin=ClusterDamage())
    assert policy.decide(later).stall
    assert not policy.decide(facts(JOB, lost(0), "returned")).stall


def test_a_replica_is_lost_as_a_whole():
    policy = Replicas(MODEL, CARD, COSTS)
    decision = policy.decide(facts(JOB, lost(0)))
    assert decision.rate == 0.5
    assert decision.join_ms == 17
    assert [policy.is_idle(lost(0), p, 0) for p in range(4)] == [True, True, False, False]
    assert policy.decide(facts(JOB, lost(0, 9))).rate == 0.5
    assert policy.decide(facts(JOB, lost(0, 16))).rate == 0.0
    assert policy.decide(facts(JOB, ClusterDamage(), "joined")).strategy == HEALTHY
    slow = policy.decide(facts(JOB, slowed(0), "slowed"))
    assert slow.rate_at_full_speed == 1.0 > slow.rate


def test_an_adaptive_policy_goes_on_and_says_why():
    policy = Adaptive(Share(MODEL), CARD, COSTS)
    decision = policy.decide(facts(JOB, lost(0)))
    assert (decision.strategy, decision.rate, decision.join_ms) == ("share", 0.75, 17)
    assert decision.reason == "1 pipeline short of 1 device: because"
    whole = policy.decide(facts(JOB, ClusterDamage(), "joined"))
    assert (whole.strategy, whole.rate) == (HEALTHY, 1.0)


def test_the_rest_of_a_broken_group_is_idle_or_not():
    whole = Adaptive(Share(MODEL), CARD, COSTS)
    assert [whole.is_idle(lost(0), 0, stage) for stage in range(4)] == [True, *[False] * 3]
    shrinking = Adaptive(Share(MODEL), CARD, COSTS, whole_teams=False)
    assert not shrinking.is_idle(lost(0), 0, 0)


def test_nothing_possible_means_waiting():
    policy = Adaptive(Share(MODEL), CARD, COSTS)
    decision = policy.decide(facts(JOB, lost(0, 8, 16, 24)))
    assert (decision.strategy, decision.rate) == (WAIT, 0.0)


@pytest.mark.parametrize("policy", [Adaptive, Restart])
def test_slow_and_missing_devices_are_told_apart(policy):
    decision = policy(Share(MODEL), CARD, COSTS).decide(facts(JOB, slowed(0), "slowed"))
    assert (decision.rate, decision.rate_at_full_speed) == (0.5, 1.0)


def test_stalls_depend_on_what_happened():
    costs = RecoveryConstants(exit_ms=1, hang_ms=1, plan_ms=3, groups_ms=5, join_stall_ms=9)
    policy = Adaptive(Share(MODEL), CARD, costs)
    parts = [dict(policy.decide(facts(JOB, lost(0), what)).stall) for what in
             ("failed", "joined", "returned", "failed unused", "slowed")]  # fmt: skip
    assert parts[0].keys() == {"planning", "groups", "moving state", "lost work"}
    assert parts[1:] == [{"joining": 9}, {}, {}, {}]
