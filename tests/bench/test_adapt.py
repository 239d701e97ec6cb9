"""What bench/adapt.py makes of the runs it sees."""

import math

import pytest

from holdfast.observe.events import FaultInjected, StepDone


@pytest.fixture
def adapt(load_bench):
    return load_bench("adapt")


def outcome(adapt, **changes):
    values = {
        "case": "a case",
        "before_s": 1.0,
        "ours": 0.9,
        "reroute": 0.8,
        "restart": 0.66,
        "share": 11 / 12,
        "plan": "another",
        "to_plan_s": 2.0,
        "stall": 0.05,
        "predicted": 1.01,
        "down_s": 5.0,
        "difference": 1e-15,
    }
    return adapt.Outcome(**values | changes)


def missed(adapt, **changes):
    return [
        goal.name.split(": ")[-1]
        for goal in adapt.goals([outcome(adapt, **changes)], band=0.01)
        if not goal.met
    ]


def test_every_goal_can_be_missed(adapt):
    assert missed(adapt) == []
    assert missed(adapt, reroute=0.95) == ["ours / best other"]
    assert missed(adapt, restart=0.95) == ["ours / best other"]
    assert missed(adapt, share=1.0) == ["mean share of the healthy"]
    assert missed(adapt, predicted=1.2) == ["prediction error"]
    assert missed(adapt, stall=0.3) == ["stall / step"]
    assert missed(adapt, difference=1e-3) == ["largest difference"]


def test_without_a_new_plan_nothing_was_predicted(adapt):
    names = [goal.name for goal in adapt.goals([outcome(adapt, predicted=math.nan)], band=0.01)]
    assert not any("prediction" in name for name in names)


def test_the_targets_of_all_faults_exist_in_the_full_job(adapt):
    workers = {f"n{n}.g{g}" for n in range(3) for g in range(adapt.PER_NODE)}
    nodes = {name.split(".")[0] for name in workers}
    for case in adapt.CASES:
        for fault in case.faults:
            for target in (fault.target or "").split(">"):
                assert target in workers | nodes


def test_step_times_are_read_from_the_steps(adapt, monkeypatch):
    seen, clock = adapt.Seen(), iter(range(100))
    monkeypatch.setattr(adapt.time, "monotonic", lambda: float(next(clock)))
    for step in range(4):
        seen.on_event(
            StepDone(
                reason="",
                step=step,
                epoch=1,
                loss=1.0,
                norm=1.0,
                tokens=1,
                tokens_per_s=1.0,
                step_time_s=1.0,
                learning_rate=0.1,
                applied=True,
                snapshot_step=None,
            )
        )
    seen.on_event(FaultInjected(reason="", fault="SIGKILL", target="n0.g1", step=4))
    assert seen.step_s(1, 4) == 1.0
    assert seen.fault_s == 4.0
