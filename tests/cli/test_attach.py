"""Jobs that are watched and stopped from anywhere. Real ones: tests/process/test_takeover.py."""

import msgspec
import pytest

from holdfast.cli.attach_run import find_run_dir
from holdfast.cli.main import main
from holdfast.cli.run_detached import start_detached
from holdfast.errors import HoldfastError
from holdfast.observe.events import JobEnded
from holdfast.observe.run_clock import RunClock
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.launch.run_record import keep_run
from holdfast.runtime.rendezvous.rendezvous import open_rendezvous
from support.made_runs import MadeRun


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("stopped", 143), ("failed", 1)])
def test_a_run_that_is_over_is_told_with_its_exit_code(tmp_path, capsys, outcome, code) -> None:
    run = MadeRun().start().steps(3)
    run.tell(JobEnded(reason="so", outcome=outcome, next_step=3, loss=1.0, seconds=9.0), 0.1)
    run.write(tmp_path / "run")
    assert main(["attach", str(tmp_path / "run")]) == code
    assert outcome in capsys.readouterr().out


def test_a_job_is_found_by_its_rendezvous(tmp_path) -> None:
    place = f"dir:{tmp_path / 'job'}"
    with pytest.raises(HoldfastError, match="is not there"):
        find_run_dir(place)
    met = open_rendezvous(place, create=True)
    with pytest.raises(HoldfastError, match="no job has begun"):
        find_run_dir(place)
    spec = CoordinatorSpec(
        run_dir=str(tmp_path / "elsewhere"),
        secret="",
        config=JobConfig(job=JobSection(steps=1)),
        plans=(),
        backend="gloo",
        clock=RunClock(0.0, 0.0),
    )
    keep_run(met, spec)
    keep_run(met, msgspec.structs.replace(spec, run=2, run_dir=str(tmp_path / "newer")))
    assert find_run_dir(place) == tmp_path / "newer"
    assert find_run_dir(str(tmp_path)) == tmp_path


def test_there_has_to_be_a_job_to_stop(tmp_path, capsys) -> None:
    assert main(["stop", str(tmp_path)]) == 1
    assert "is not the folder of a run that has begun" in capsys.readouterr().err


def test_a_detached_command_that_fails_early_says_why(tmp_path) -> None:
    config = JobConfig(job=JobSection(steps=1, run_dir=str(tmp_path / "run")))
    with pytest.raises(HoldfastError, match=r"nowhere\.toml"):
        start_detached(config, tmp_path / "nowhere.toml", ())
