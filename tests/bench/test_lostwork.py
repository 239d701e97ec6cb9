"""What bench/lostwork.py makes of the steps it hears of, and that kills are survived there."""

import json
import math
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def lostwork(load_bench):
    return load_bench("lostwork")


def test_what_was_lost(lostwork):
    """Steps of 0.1 s; a kill after step 4 costs three steps and 1 s until they begin again."""
    first = [(0.1 * n, n) for n in range(5)]
    again = [(1.5 + 0.1 * n, 2 + n) for n in range(8)]
    found = lostwork.loss_of(lostwork.Run(steps=first + again))
    assert found.redone == 3
    assert found.step_s == pytest.approx(0.1)
    assert found.wall_s == pytest.approx(2.2)
    assert found.lost_s == pytest.approx(2.2 - 0.9)


def test_kills_lie_anywhere_between_two_checkpoints(lostwork):
    steps = lostwork.kill_steps(10)
    assert steps == sorted(steps) == lostwork.kill_steps(10)
    assert len({step % lostwork.EVERY_STEPS for step in steps}) > 5


def test_each_kill_strikes_once(lostwork, monkeypatch):
    strikes = []
    monkeypatch.setattr(
        lostwork.threading,
        "Timer",
        lambda delay_s, call: SimpleNamespace(start=lambda: strikes.append(delay_s) or call()),
    )
    run = lostwork.Run()
    killer = lostwork.Killer(run, [2], lambda: None)
    for at_s, step in ((0.0, 0), (0.5, 1), (1.0, 2), (3.0, 2), (3.5, 3)):
        killer.stepped(at_s, step)
    assert run.num_kills == len(strikes) == 1
    assert 0 <= strikes[0] <= 0.5
    assert [step for _, step in run.steps] == [0, 1, 2, 2, 3]


def test_goals(lostwork):
    ours, plain = lostwork.Loss(3, 9, 0.1, 2.0), lostwork.Loss(60, 20, 0.1, 8.0)
    assert [goal.met for goal in lostwork.judge(ours, plain)] == [True, True]
    assert [goal.met for goal in lostwork.judge(plain, ours)] == [False, False]
    nothing = lostwork.judge(ours, lostwork.Loss(0, 9, 0.1, 1.0))
    assert math.isnan(nothing[0].value)
    assert not nothing[0].met


# Real runs.


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ours_goes_on_after_a_kill(lostwork):
    run = lostwork.run_ours([5], 10)
    assert run.num_kills == 1
    assert {step for _, step in run.steps} == set(range(10))
    assert lostwork.loss_of(run).redone == run.told_redone <= 2
    assert run.starting_s > 0


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_plain_script_goes_on_from_its_checkpoint(lostwork, monkeypatch):
    monkeypatch.setattr(lostwork, "EVERY_STEPS", 4)
    run = lostwork.run_plain([9], 14)
    assert run.num_kills == 1
    steps = [step for _, step in run.steps]
    assert sorted(set(steps)) == list(range(14))
    assert steps[steps.index(9) + 1 :][0] in (0, 4, 8, 10), "from a checkpoint that was complete"
    assert json.dumps(lostwork.asdict(lostwork.loss_of(run)))
