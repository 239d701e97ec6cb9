"""What is gone and slow, described independently of where."""

from holdfast.sim.cluster.events import KILLED
from holdfast.sim.cluster.health import ClusterHealth
from support.sim_jobs import small_job


def test_a_loss_hurts_one_seat():
    health = ClusterHealth(small_job())
    assert health.lose((3,), KILLED) == (3,)
    assert health.situation().pipelines == ((0, ((1, (1.0,)),)),)
    assert health.situation().broken(2) == (0,)
    assert health.lose((3,), KILLED) == ()


def test_equal_damage_elsewhere_looks_equal():
    one, other = ClusterHealth(small_job()), ClusterHealth(small_job())
    one.lose((3, 8 + 1), KILLED)
    other.lose((16 + 2, 24 + 0), KILLED)
    assert one.situation() != other.situation()
    assert one.situation().hurts == other.situation().hurts


def test_speeds_stand_fastest_first():
    health = ClusterHealth(small_job(tensor=2))
    health.slow_down((0,), 2.0)
    assert health.situation().hurts == (((0, (1.0, 0.5)),),)
    assert health.situation().broken(2) == ()
    assert health.situation().has_slow
    assert health.situation().losses(2) == ()
    health.slow_down((0,), 1.5)
    assert health.slow[0] == 2.0
    health.speed_up((0,))
    assert health.situation().hurts == ()


def test_losses_are_told_apart_from_slow_devices():
    health = ClusterHealth(small_job(tensor=2))
    health.lose((1,), KILLED)
    assert not health.situation().has_slow
    health.slow_down((0, 3), 2.0)
    assert health.situation().hurts == (((0, (0.5,)), (1, (1.0, 0.5))),)
    assert health.situation().losses(2) == (((0, (1.0,)),),)


def test_restored_devices_are_whole_again():
    health = ClusterHealth(small_job())
    health.lose((2, 3), KILLED)
    health.slow_down((5,), 3.0)
    assert health.gone_nodes() == (1,)
    assert health.with_nodes([1]).pipelines == ((0, ((2, (1.0, 1 / 3)),)),)
    health.restore((2, 3, 5))
    assert health.situation().pipelines == ()


def test_fresh_losses_are_told_apart():
    health = ClusterHealth(small_job())
    health.lose((2,), KILLED)
    known = frozenset(health.gone)
    health.lose((9,), KILLED)
    assert [pipeline for pipeline, _ in health.lost_since(known).pipelines] == [1]
