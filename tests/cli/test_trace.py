import json

import pytest

from holdfast.cli.main import main
from holdfast.cli.trace_run import parse_steps
from support.made_runs import PLAN, disturbed_run
from support.measured import write_times
from support.timelines import small_timeline


@pytest.fixture
def run_dir(tmp_path):
    path = disturbed_run().end().write(tmp_path / "run")
    write_times(small_timeline(PLAN), path, range(20, 60))
    return path


def test_steps_of_a_run(run_dir, tmp_path, capsys):
    out = tmp_path / "trace.json"
    assert main(["trace", str(run_dir), "--steps", "30:40", "--out", str(out)]) == 0
    assert "steps 30-39 of 4 workers" in capsys.readouterr().out
    events = json.loads(out.read_text())["traceEvents"]
    assert {e["args"]["step"] for e in events if e.get("cat") == "step"} == set(range(30, 40))
    assert main(["trace", str(run_dir), "--out", str(out)]) == 0
    assert "steps 50-59" in capsys.readouterr().out
    assert main(["trace", str(run_dir), "--steps", "15:25", "--out", str(out)]) == 0
    assert "5 steps of 15:25 are not kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("0:5", "there are 20 to 59"),
        ("a:b", "are no steps"),
        ("9:3", "does not come after"),
        (":", "are no steps"),
    ],
)
def test_steps_that_cannot_be_shown(run_dir, tmp_path, capsys, steps, words):
    assert main(["trace", str(run_dir), "--steps", steps, "--out", str(tmp_path / "x")]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_run_without_times(tmp_path, capsys):
    path = disturbed_run().end().write(tmp_path / "run")
    assert main(["trace", str(path)]) == 1
    assert "trace_every" in capsys.readouterr().err


def test_ways_to_say_which():
    assert parse_steps("", 100) == (90, 100)
    assert parse_steps("", 0) == (0, 1)
    assert parse_steps("7", 100) == (7, 8)
    assert parse_steps("7:", 100) == (7, 100)
    assert parse_steps(":7", 100) == (0, 7)
