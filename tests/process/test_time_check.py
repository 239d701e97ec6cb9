"""The check that every chaos run ends with can fail."""

import json

import pytest

from support.made_runs import MadeRun, disturbed_run
from support.time_check import worst_time


def test_runs_that_ended_and_runs_that_were_killed_add_up(tmp_path):
    disturbed_run().end().write(tmp_path / "ended")
    MadeRun().start().steps(3).lose("n0.g1").write(tmp_path / "killed")
    off, num_runs = worst_time(tmp_path)
    assert off <= 1e-3
    assert num_runs == 2


def test_a_second_that_is_not_told_is_found(tmp_path):
    run_dir = disturbed_run().end().write(tmp_path / "run")
    (run_dir / "report.json").write_text(json.dumps({"time_s": {"productive": 1.0}}))
    with pytest.raises(AssertionError, match=r"1\.000 s are told, .* went by"):
        worst_time(tmp_path)
