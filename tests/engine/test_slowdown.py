"""How long a device is slow on purpose."""

from holdfast.engine.slowdown import Slowdown


def test_it_ends_by_itself_also_where_nothing_is_computed():
    now = [100.0]
    slow = Slowdown(clock=lambda: now[0])
    assert slow.factor == 1.0
    slow.begin(3.0, seconds=5.0)
    assert slow.factor == 3.0
    now[0] += 5.0
    assert slow.factor == 1.0


def test_without_a_time_it_lasts_until_it_is_ended():
    slow = Slowdown(clock=lambda: 100.0)
    slow.begin(3.0)
    assert slow.factor == 3.0
    slow.begin(1.0)
    assert slow.factor == 1.0
