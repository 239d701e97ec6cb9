"""Every published system has its rule, source, limits and constants."""

import pytest

from holdfast.sim.cluster import peers
from holdfast.sim.cluster.compare import POLICIES
from holdfast.sim.cluster.job import make_job
from holdfast.sim.cluster.pace import StepTimes
from holdfast.sim.cluster.strategies import double_up

PACE = StepTimes(make_job("llama-70b", 2048))


@pytest.mark.parametrize("name", POLICIES)
def test_cards_and_constants_are_complete(name):
    policy = POLICIES[name](PACE)
    card = policy.card
    assert all((card.name, card.rule, card.source, card.limits, policy.costs.source))
    assert policy.costs.exit_ms > 0
    assert policy.costs.hang_ms > 0
    assert 0 < policy.steady <= 1


def test_initialisation_goes_through_both_published_points():
    assert peers.init_ms(make_job("llama-70b", 16_384)) == 17_000
    assert peers.init_ms(make_job("llama-70b", 98_304)) == pytest.approx(200_000, rel=0.001)
    assert peers.init_ms(make_job("llama-70b", 64)) == 1_000


def test_redundancy_costs_what_bubbles_do_not_hide():
    assert 0.9 < peers.bamboo(PACE).steady < 1.0
    few = StepTimes(make_job("llama-70b", 2048, micro_batches=8))
    assert peers.bamboo(few).steady == 1.0


def test_redundancy_needs_twice_the_memory():
    tight = StepTimes(make_job("llama-70b", 2048, stages=4))
    assert peers.bamboo(tight).steady == 0.0
    assert double_up(tight, ()) == tight.healthy_ms
