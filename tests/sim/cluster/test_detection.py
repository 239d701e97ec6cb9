"""Delays are those of the production watch."""

from holdfast.detect.progress import DEFAULT
from holdfast.sim.cluster.detection import hang_ms


def test_a_hang_is_seen_after_a_multiple_of_the_action():
    for action_ms in (50, 500, 5_000):
        delay_ms = hang_ms(action_ms)
        assert DEFAULT.floor_ms <= delay_ms
        assert delay_ms <= DEFAULT.floor_ms + 8 * action_ms + 2 * DEFAULT.interval_ms


def test_longer_actions_take_longer_to_call_hung():
    delays = [hang_ms(action_ms) for action_ms in (10, 100, 1_000, 10_000)]
    assert delays == sorted(delays)
