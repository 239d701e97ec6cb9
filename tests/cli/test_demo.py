import json

import pytest

from holdfast.cli.demo_training import demo_config, demo_job
from holdfast.cli.main import main


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


def test_the_plans_of_the_training():
    job, story = demo_job(demo_config())
    assert [len(planned.plan.workers) for planned in job.plans] == [8, 6, 8, 8]
    assert [act.at_step for act in story] == [0, 6, 12, 18]
    assert {planned.plan.num_micro_batches for planned in job.plans} == {4}


@pytest.mark.process
@pytest.mark.slow
def test_the_training(capsys, monkeypatch, tmp_path, lent_template):
    """Eight processes, three changes, a loss that falls."""
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    for words in (
        "2 replicas x 2 stages x tensor 2, on 8 processes",
        "After 6 steps: r1.s1 leaves",
        "r1.s1 lost",
        "After 12 steps: its workers are back",
        "After 18 steps: 2 replicas x 2 stages x tensor 2 again",
        "Loss by step",
        "finished: 24 steps",
        "3 changes of plan",
    ):
        assert words in out
    (run,) = (tmp_path / "runs").iterdir()
    report = json.loads((run / "report.json").read_bytes())
    assert report["num_workers"] == 8
    assert report["final_loss"] < 0.6 * report["first_loss"]
