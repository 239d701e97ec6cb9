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
        "same_plan": False,
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
    assert missed(adapt, predicted=1.2) == ["prediction error, 0.05 plus band"]
    assert missed(adapt, stall=0.3) == ["longest stall / step, plus band"]
    assert missed(adapt, difference=1e-3) == ["largest difference"]


def test_a_figure_that_is_missing_misses_its_goal(adapt):
    assert missed(adapt, predicted=math.nan) == ["prediction error, 0.05 plus band"]
    assert missed(adapt, stall=math.nan) == ["longest stall / step, plus band"]
    assert missed(adapt, difference=math.nan) == ["largest difference"]


def test_one_difference_that_is_no_number_is_not_hidden_by_others(adapt):
    assert adapt.largest([1e-15, 2e-15]) == 2e-15
    assert math.isnan(adapt.largest([1e-15, math.nan, 2e-15]))


def test_the_worst_prediction_counts_where_several_runs_have_one(adapt):
    assert adapt.worst_prediction([math.nan, 1.02, 0.95]) == 0.95
    assert math.isnan(adapt.worst_prediction([math.nan]))


def test_ways_that_come_to_the_same_plan_are_run_in_turns(adapt, monkeypatch, tmp_path):
    bench, ways = adapt.Bench(None, tmp_path, adapt.FULL), []
    monkeypatch.setattr(bench, "_run", lambda case, plan, faults: (ways.append(plan), tmp_path))
    (spare,) = (case for case in adapt.CASES if case.name == "a spare")
    autos, reroutes = bench._in_turns(spare)
    assert ways == ["auto", "reroute", "reroute", "auto", "auto", "reroute"]
    assert len(autos) == len(reroutes) == 3
    ways.clear()
    bench._in_turns(adapt.CASES[0])
    assert ways == ["auto", "reroute"]


def test_where_the_own_plan_is_the_answer_a_prediction_counts_if_there_is_one(adapt):
    assert missed(adapt, same_plan=True, predicted=math.nan) == []
    assert missed(adapt, same_plan=True, predicted=1.2) == ["prediction error, 0.05 plus band"]


def test_the_band_widens_no_goal_but_those_that_say_so(adapt):
    goals = adapt.goals([outcome(adapt)], band=0.5)
    limits = {goal.name.split(": ")[-1]: goal.limit for goal in goals}
    assert limits["mean share of the healthy"] == 0.95
    assert limits["largest difference"] == 1e-9


def test_the_worst_share_is_printed_with_its_case(adapt, capsys):
    outcomes = [outcome(adapt), outcome(adapt, case="another", ours=0.55, share=0.5)]
    adapt.report_shares(outcomes)
    assert "mean 1.041, worst 0.982 (a case)" in capsys.readouterr().out


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
