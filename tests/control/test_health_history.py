from math import inf

from holdfast.control.health_history import HealthHistory
from holdfast.control.settings import ReplanSettings

SETTINGS = ReplanSettings(rejoin_s=5.0, node_return_s=300.0, change_s=1000.0)


def returns(history: HealthHistory, now_ms: int, starts=(), comes=()) -> dict[str, float]:
    return dict(history.returns_s(starts, comes, now_ms))


def test_a_worker_comes_back_soon_a_node_later_and_some_never():
    history = HealthHistory(SETTINGS)
    history.look("well", [], 0)
    history.look("hurt", ["a", "b", "c"], 1000)
    found = returns(history, 2000, starts=["a"], comes=["a", "b"])
    assert found == {"a": 4.0, "b": 299.0, "c": inf}


def test_an_overdue_worker_is_expected_to_take_as_long_again():
    history = HealthHistory(SETTINGS)
    history.look("hurt", ["a"], 0)
    assert returns(history, 60_000, starts=["a"]) == {"a": 60.0}


def test_what_was_measured_here_counts():
    history = HealthHistory(SETTINGS)
    for at_ms in (0, 100_000, 200_000):
        history.look("hurt", ["a"], at_ms)
        history.look("well", [], at_ms + 1500)
    history.look("hurt", ["a"], 300_000)
    assert returns(history, 300_000, starts=["a"]) == {"a": 1.5}
    assert history.prepare_s == SETTINGS.prepare_s
    history.ordered(7, 1000)
    history.ordered(7, 2000)  # seen again: it was ordered before
    history.entered(7, 0.05, 5000)
    assert (history.prepare_s, history.stall_s) == (4.0, 0.05)


def test_every_change_of_health_makes_the_next_one_likelier():
    history = HealthHistory(SETTINGS)
    history.look(0, [], 0)
    before = history.horizon_s(0)
    assert before == SETTINGS.change_s
    for number in range(1, 40):
        history.look(number % 2, [], 1000 * number)
        assert history.epoch == number
    assert 0.5 < history.horizon_s(40_000) < 20
    assert history.horizon_s(4_000_000) > 200
