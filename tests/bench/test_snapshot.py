"""What bench/snapshot.py makes of the runs it has measured."""

import pytest


@pytest.fixture
def snapshot(load_bench):
    return load_bench("snapshot")


def judged(snapshot, factor, share=0.95):
    def runs(times):
        return [snapshot.Run(t, 100.0, 100.0 * share, 0.001) for t in times]

    base = [1.0 + 0.01 * n for n in range(7)]
    found = {"none": runs(base), "none again": runs(base)}
    found["bubbles"] = runs(factor * t for t in base)
    return snapshot.judge(found)


def test_goals_are_met_or_missed(snapshot):
    goals, rows = judged(snapshot, 1.005)
    assert [goal.met for goal in goals] == [True, True]
    assert rows[-1]["in bubbles"] == pytest.approx(0.95)
    assert [goal.met for goal in judged(snapshot, 1.05)[0]] == [False, True]
    assert [goal.met for goal in judged(snapshot, 1.005, share=0.8)[0]] == [True, False]


def test_every_variant_is_a_job_that_can_run(snapshot, tmp_path):
    found = {}
    for name, section in snapshot.VARIANTS.items():
        config = snapshot.make_config(snapshot.QUICK, section, tmp_path)
        own = config.snapshot
        found[name] = (own.placement, own.mode) if own.every else None
    assert found == {
        "none": None,
        "none again": None,
        "bubbles": ("bubbles", "full"),
        "any wait": ("waits", "full"),
        "after step": ("after_step", "full"),
        "light": ("bubbles", "light"),
    }
