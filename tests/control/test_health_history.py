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
    assert history.prepare_s() == SETTINGS.prepare_s
    history.ordered(7, 1000)
    history.ordered(7, 2000)  # seen again: it was ordered before
    history.entered(7, 0.05, 5000, joins=False)
    assert (history.prepare_s(), history.stall_s) == (4.0, 0.05)
    history.ordered(8, 6000)
    history.entered(8, 0.07, 26_000, joins=True)
    assert (history.prepare_s(), history.prepare_s(joins=True)) == (4.0, 20.0)


def test_a_process_that_is_started_again_ends_the_use_of_no_plan():
    """Killed again and again, and back after a second: only what lasts is a change of health."""
    history = HealthHistory(SETTINGS)
    history.look("well", [], 0)
    calm_s = history.horizon_s(400_000)
    for number in range(1, 10):
        history.look("hurt", ["a"], 40_000 * number)
        history.look("well", [], 40_000 * number + 1000)
    assert history.epoch == 18
    assert history.horizon_s(400_000) == calm_s
    history.look("hurt", ["b"], 400_000)
    history.look("well", [], 440_000)
    assert history.horizon_s(440_000) < calm_s


def test_of_two_that_are_away_the_one_that_stays_away_counts():
    history = HealthHistory(SETTINGS)
    history.look("well", [], 0)
    history.look("one", ["a"], 10_000)
    history.look("two", ["a", "b"], 11_000)
    history.look("other", ["b"], 12_000)
    alone = HealthHistory(SETTINGS)
    alone.look("well", [], 0)
    alone.look("other", ["b"], 11_000)
    assert history.horizon_s(50_000) == alone.horizon_s(50_000)


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


def test_a_node_that_was_away_says_nothing_about_processes_that_are_started_again():
    history = HealthHistory(ReplanSettings(rejoin_s=5.0))
    history.look("all", (), 0)
    history.look("n1 away", ("n1.g0", "n1.g1"), 1_000, away=("n1.g0", "n1.g1"))
    history.look("n1 starts", ("n1.g0", "n1.g1"), 61_000)
    history.look("all", (), 63_000)
    history.look("killed", ("n2.g0",), 70_000)
    assert history.returns_s(("n2.g0",), (), 70_000) == {"n2.g0": 5.0}, "as the settings say"
    history.look("all", (), 72_000)
    history.look("killed", ("n2.g0",), 80_000)
    assert history.returns_s(("n2.g0",), (), 80_000) == {"n2.g0": 2.0}
