"""What bench/hf.py makes of what it measures."""

import pytest


@pytest.fixture
def hf(load_bench):
    return load_bench("hf")


def test_goals_are_about_ratios_of_rounds(hf):
    def costs(step_s, memory):
        return [hf.Cost(step_s, memory, 1.0)] * 8

    base = {"plain": costs(1.0, 100), "plain again": costs(1.0, 100)}
    goals, row = hf.goals_of({**base, "job": costs(1.01, 104)})
    assert [goal.met for goal in goals] == [True, True]
    assert row["first step after, job"] == "1.00 s"
    goals, _ = hf.goals_of({**base, "job": costs(1.03, 106)})
    assert [goal.met for goal in goals] == [False, False]
