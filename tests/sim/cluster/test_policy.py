"""What all policies have in common."""

import pytest

from holdfast.planner.peers.system import RecoveryConstants
from holdfast.sim.cluster.events import KILLED, SLOW, Cause
from holdfast.sim.cluster.health import ClusterHealth
from holdfast.sim.cluster.job import make_job
from holdfast.sim.cluster.policy import Policy, describe, move_ms, stall
from support.sim_jobs import KnownSteps, Scripted, small_job

STEPS = KnownSteps(small_job())


def test_delays_follow_the_sign_of_a_failure():
    costs = RecoveryConstants(exit_ms=300, hang_ms=9_000, slow_steps=5)
    policy = Scripted(STEPS, costs=costs)
    assert policy.delay_ms(KILLED) == 300
    assert policy.delay_ms(Cause("silence", 1, "node", "hang", True)) == 9_000
    assert policy.delay_ms(SLOW) == round(5 * STEPS.step_ms)
    assert policy.handles_slow
    assert not Scripted(STEPS).handles_slow


def test_slow_devices_slow_down_until_something_is_done():
    health = ClusterHealth(small_job())
    health.slow_down((0,), 2.0)
    assert Scripted(STEPS).slow_rate(health.situation()) == 0.5


def test_a_stall_names_its_parts():
    assert stall(moving_state=5, groups=0, planning=2) == (("moving state", 5), ("planning", 2))


def test_situations_in_words():
    health = ClusterHealth(small_job())
    assert describe(health.situation(), 2) == "all devices healthy"
    health.lose((0, 1, 9), KILLED)
    health.slow_down((20,), 2.0)
    assert describe(health.situation(), 2) == "2 pipelines short of 3 devices, 1 seat slow"


def test_a_policy_has_to_decide():
    with pytest.raises(TypeError, match="decide"):
        Policy(STEPS)


def test_state_moves_at_the_published_rate():
    job = make_job("llama-30b", 64)
    assert 5_000 < move_ms(job) < 30_000
