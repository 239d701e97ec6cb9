import json

import pytest

from holdfast.cli.demo_training import FULL, SHORT, demo_config
from holdfast.cli.main import main
from holdfast.runtime.launch.prepare import prepare_job


def test_the_story(capsys):
    assert main(["demo", "--plans"]) == 0
    out = capsys.readouterr().out
    for words in (
        "1. A healthy step",
        "2. One slow worker: r0.s1",
        "3. Rerouted: r0.s1 is dead",
        "iteration time 33,",
        "iteration time 42 (+27 %)",
        "iteration time 39 (+18 %)",
        "r0.s1 lost",
        "r0-2.s0 x 3",
    ):
        assert words in out
    assert max(map(len, out.splitlines())) <= 120


def test_pictures_share_one_scale(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["demo", "--plans"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "F0" in line]
    starts = {line.index("F0") - line.count("·", 0, line.index("F0")) for line in lines[:2]}
    assert len(starts) == 1


def test_numbers_for_other_programs(capsys):
    assert main(["demo", "--plans", "--json"]) == 0
    story = json.loads(capsys.readouterr().out)
    assert [picture["iteration_time"] for picture in story] == [33, 42, 39]


@pytest.mark.parametrize("script", [FULL, SHORT], ids=["full", "short"])
def test_the_faults_of_the_training(script):
    job = prepare_job(demo_config("demo", script.num_steps, script.faults))
    (planned,) = job.plans
    assert len(planned.plan.workers) == 6
    steps = [fault.at_step for fault in script.faults]
    assert steps == sorted(steps)
    assert steps[-1] < script.num_steps


def test_the_short_story_has_faults_of_the_full_one():
    kinds = [(fault.kind, fault.target) for fault in FULL.faults]
    assert [(fault.kind, fault.target) for fault in SHORT.faults] == kinds[-3:]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_short_training(capsys, monkeypatch, tmp_path, lent_fork_server):
    """Three faults, and a result equal to that of the undisturbed run."""
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--short"]) == 0
    out = capsys.readouterr().out
    for words in (
        "the coordinator is killed",
        "a worker hangs (n0.g2)",
        "a worker is killed (n1.g0)",
        "dropping the replica",
        "faults: 3; steps lost: 0 of 28; samples lost: 0 tokens",
        ": equal",
        "finished: 28 steps",
    ):
        assert words in out


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_training(capsys, monkeypatch, tmp_path, lent_fork_server):
    """Five faults, and a result equal to that of the undisturbed run."""
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    for words in (
        "a node is lost (n1)",
        "the coordinator is killed",
        "a worker hangs (n0.g2)",
        "a worker is killed (n1.g0)",
        "slow",
        "dropping the replica",
        "faults: 5; steps lost: 0 of 84; samples lost: 0 tokens",
        ": equal",
        "finished: 84 steps",
    ):
        assert words in out
