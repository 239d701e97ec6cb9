"""The published rules on small cases that can be counted by hand."""

import pytest

from holdfast.sim.cluster.pace import NEVER, StepTimes
from holdfast.sim.cluster.strategies import (
    best_degree,
    deal_ms,
    double_up,
    drop,
    migrate,
    morph,
    powers_of_two,
    regroup,
    reroute,
    shorten,
    shrink,
    slow_ms,
)
from support.sim_jobs import small_job

LOST = ((1, ()),)  # stage 1 without any device
HALF = ((1, (1.0,)),)  # stage 1 with one of two
SLOW = ((1, (1.0, 0.5)),)
PACE = StepTimes(small_job())
SLOT = 20.0
ALL = (drop, reroute, shorten, shrink, migrate, regroup, double_up, morph)


@pytest.mark.parametrize("strategy", ALL)
def test_nothing_hurt_nothing_lost(strategy):
    assert strategy(PACE, ()) == pytest.approx(PACE.healthy_ms)


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("hurt", [LOST, HALF])
def test_a_loss_never_helps(strategy, hurt):
    one = strategy(PACE, (hurt,))
    assert PACE.healthy_ms * (1 - 1e-9) <= one <= strategy(PACE, (hurt, hurt)) * (1 + 1e-9)


def test_dropped_pipelines_leave_their_share_to_the_others():
    assert drop(PACE, (LOST,)) == pytest.approx((11 + 3) * SLOT)
    assert drop(PACE, (LOST,) * 4) == NEVER


def test_rerouting_fills_bubbles_first():
    # 32 micro-batches over 3 seats: 11 each, one slot more; 8 + 3 slots were there before
    assert reroute(PACE, (LOST,)) == pytest.approx(12 * SLOT)
    # Chameleon's Eq. 12, rounded to whole micro-batches: 4 + 8 - 1 + 3 slots
    assert reroute(PACE, (LOST,), decoupled=False) == pytest.approx(14 * SLOT)
    # losses in different stages do not add up, in the same stage they do
    other = ((2, ()),)
    assert reroute(PACE, (LOST, other)) == reroute(PACE, (LOST,))
    assert reroute(PACE, (LOST, LOST)) > reroute(PACE, (LOST,))
    assert reroute(PACE, (LOST,) * 4) == NEVER


def test_a_shorter_pipeline_splits_its_layers_anew():
    # 8 layers over 3 stages: 3, 3, 2; so that pipeline takes fewer micro-batches
    found = shorten(PACE, (LOST,))
    assert PACE.healthy_ms < found < drop(PACE, (LOST,))
    memory = StepTimes(small_job(layer_bytes=64 * 10**9))
    assert shorten(memory, (LOST,)) == drop(memory, (LOST,))


def test_a_smaller_group_beats_a_lost_one():
    assert shrink(PACE, (HALF,)) <= shorten(PACE, (LOST,))
    assert shrink(PACE, (LOST,)) == pytest.approx(shorten(PACE, (LOST,)))


def test_the_best_degree_may_leave_devices_out():
    pace = StepTimes(small_job(tensor=8, num_heads=64))
    assert best_degree(pace, (1.0,) * 7, powers_only=False) == 7
    assert best_degree(pace, (1.0,) * 7, powers_only=True) == 4
    assert best_degree(pace, (1.0,) * 7 + (0.3,), powers_only=False) == 7
    assert best_degree(pace, (1.0,) * 7 + (0.6,), powers_only=True) == 8
    assert best_degree(pace, (), powers_only=True) == 0


def test_micro_batches_migrate_to_whoever_has_capacity():
    assert migrate(PACE, (SLOW,)) < slow_ms(PACE, (SLOW,))
    assert migrate(PACE, (LOST,) * 4) == NEVER


def test_work_is_dealt_exactly():
    assert deal_ms({17.0: 1, 26.6: 1}, 64) == pytest.approx(665.0)
    assert deal_ms({1.0: 3, NEVER: 1}, 4) == pytest.approx(2.0)
    assert deal_ms({NEVER: 2}, 4) == NEVER


def test_left_overs_form_groups_of_their_own():
    assert powers_of_two((1.0,) * 7) == [(1.0,) * 4, (1.0,) * 2, (1.0,)]
    assert powers_of_two((1.0, 1.0, 0.4)) == [(1.0, 1.0), (0.4,)]
    assert regroup(PACE, (SLOW,)) < slow_ms(PACE, (SLOW,))


def test_a_neighbour_takes_over_once():
    assert double_up(PACE, (LOST,)) == pytest.approx(PACE.chain_ms((30.0, 20.0, 20.0), 8))
    both = ((1, ()), (2, ()))
    assert double_up(PACE, (both,)) == drop(PACE, (LOST,))


def test_morphing_leaves_devices_idle():
    # 15 seats: 3 pipelines of 4, or 1 of 8 (layers divide by both)
    assert morph(PACE, (LOST,)) == pytest.approx((11 + 3) * SLOT)


def test_slow_devices_stop_whoever_does_not_look():
    for strategy in (drop, reroute, double_up, morph):
        assert strategy(PACE, (SLOW,)) >= slow_ms(PACE, (SLOW,))
    assert slow_ms(PACE, (LOST,)) == 0.0
