"""What bench/snapshotter.py makes of the blocks it has measured."""

import pytest


@pytest.fixture
def snapshotter(load_bench):
    return load_bench("snapshotter")


def judged(snapshotter, factor):
    base = [1.0 + 0.01 * n for n in range(7)]
    times = snapshotter.Times(
        seconds={"none": base, "none again": base, "every step": [factor * t for t in base]},
    )
    times.cpu = times.seconds
    times.reports = {name: [] for name in times.seconds}
    return snapshotter.judge([times])


def test_the_goal_is_met_or_missed(snapshotter):
    assert [goal.met for goal in judged(snapshotter, 1.01)[0]] == [True]
    goals, rows = judged(snapshotter, 1.1)
    assert [goal.met for goal in goals] == [False]
    assert rows[-1]["CPU ratio"] == pytest.approx(1.1)
