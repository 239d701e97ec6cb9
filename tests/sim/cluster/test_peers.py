"""Every published system has its rule, source, limits and constants, and becomes a policy."""

import pytest

from holdfast.planner.peers.systems import BAMBOO, PEERS, init_ms
from holdfast.sim.cluster.compare import POLICIES
from holdfast.sim.cluster.job import make_job
from holdfast.sim.cluster.peers import constants_of, peer_policy
from holdfast.sim.cluster.planning import ClusterModel
from support.sim_jobs import KnownSteps

MODEL = ClusterModel(make_job("llama-70b", 2048))


def test_there_are_nine_of_them():
    assert len(PEERS) == len({system.key for system in PEERS}) == 9
    assert {system.key for system in PEERS} < set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_cards_and_constants_are_complete(name):
    policy = POLICIES[name](MODEL)
    card = policy.card
    assert all((card.name, card.rule, card.source, card.limits, policy.costs.source))
    assert policy.costs.exit_ms > 0
    assert policy.costs.hang_ms > 0
    assert 0 < policy.steady <= 1


@pytest.mark.parametrize("system", PEERS, ids=lambda system: system.key)
def test_constants_need_nothing_but_facts_of_the_job(system):
    """They are the same for any model of the same step time."""
    steps = KnownSteps(MODEL.job, MODEL.step_ms)
    assert constants_of(system, steps) == constants_of(system, MODEL)


def test_initialisation_goes_through_both_published_points():
    assert init_ms(16_384) == 17_000
    assert init_ms(98_304) == pytest.approx(200_000, rel=0.001)
    assert init_ms(64) == 1_000


def test_redundancy_costs_throughput_and_memory():
    assert 0.5 < peer_policy(BAMBOO, MODEL).steady < 1.0
    tight = ClusterModel(make_job("llama-70b", 2048, stages=4))
    assert peer_policy(BAMBOO, tight).steady == 0.0
