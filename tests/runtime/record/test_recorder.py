import os
import time
from datetime import datetime

import msgspec
import pytest

from holdfast.observe import run_clock
from holdfast.observe.events import JobEnded, JobStarted
from holdfast.observe.journal import Journal, read_journal, read_lines
from holdfast.observe.run_clock import start_clock
from holdfast.observe.run_directory import create_run_directory
from holdfast.plan.profile import Profile, format_profile, parse_profile
from holdfast.plan.text import parse_plan
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection
from holdfast.runtime.launch.launcher_messages import Ending
from holdfast.runtime.record.recorder import Recorder, resolved
from support.job_events import step


@pytest.fixture
def directory(tmp_path):
    return create_run_directory(str(tmp_path / "x"), "x")


def test_the_beginning(tiny_job, directory):
    job, told = tiny_job(changes=[ChangeSection(at_step=1, parallel=ParallelSection(tensor=2))]), []
    with Recorder(job, directory, told.append) as recorder:
        recorder.begin()
    assert [type(event) for event in told] == [JobStarted]
    assert read_journal(directory / "journal.jsonl") == told
    for number, planned in enumerate(job.plans):
        assert parse_plan((directory / f"plans/given-{number}.toml").read_text()) == planned.plan


def test_what_others_write_is_told_and_counted(tiny_job, directory):
    told = []
    with (
        Recorder(tiny_job(), directory, told.append) as recorder,
        Journal(
            directory / "journal.jsonl", directory / "metrics.jsonl", start_clock().stamp
        ) as others,
    ):
        others.write(step(0, 0.5, 2.0))
        recorder.follow()
        recorder.follow()
    assert recorder.steps == told == [step(0, 0.5, 2.0)]


def test_the_end(tiny_job, directory):
    told = []
    with (
        Recorder(tiny_job(), directory, told.append) as recorder,
        Journal(
            directory / "journal.jsonl", directory / "metrics.jsonl", start_clock().stamp
        ) as others,
    ):
        others.write(step(0, 0.5, 2.0))
        recorder.follow()
        profile = format_profile(Profile(agree=3.0))
        ending = Ending(outcome="stopped", reason="because", staging_bytes=77, profile=profile)
        report = recorder.end(ending)
    assert isinstance(told[-1], JobEnded)
    assert (report.outcome, report.reason, report.next_step) == ("stopped", "because", 1)
    assert (report.final_loss, report.staging_bytes) == (2.0, 77)
    assert msgspec.json.decode((directory / "report.json").read_bytes())["steps"] == 1
    assert parse_profile((directory / "profile.json").read_text()).agree == 3.0


def test_the_report_and_the_journal_end_at_the_same_time(tiny_job, directory, monkeypatch):
    """Writing the report may take longer than a run that is stopped at once."""
    with Recorder(tiny_job(), directory, None) as recorder:
        recorder.begin()
        written, passed = directory.write, []

        def write_slowly(name, text):
            passed.append(100.0)
            return written(name, text)

        now = time.monotonic
        monkeypatch.setattr(run_clock.time, "monotonic", lambda: now() + sum(passed))
        monkeypatch.setattr(directory, "write", write_slowly)
        report = recorder.end(Ending(outcome="stopped", reason="because"))
        monkeypatch.undo()
    first, *_, last = read_lines(directory / "journal.jsonl")
    seconds = datetime.fromisoformat(last["time"]) - datetime.fromisoformat(first["time"])
    assert seconds.total_seconds() == pytest.approx(report.seconds, abs=0.002)
    assert passed


def test_without_a_measurement_there_is_no_profile(tiny_job, directory):
    with Recorder(tiny_job(), directory, None) as recorder:
        recorder.end(Ending(outcome="failed", reason="no"))
    assert not (directory / "profile.json").exists()


def test_nothing_is_left_open_in_the_settings_that_are_kept(tiny_job, tmp_path, monkeypatch):
    job = tiny_job(data=DataSection(seq_len=8), parallel=ParallelSection(replicas=3))
    kept = resolved(job)
    assert kept.data.micro_batches == 6
    assert kept.parallel == job.config.parallel
    assert kept.job.run_dir == ""
    monkeypatch.chdir(tmp_path)
    data = msgspec.structs.replace(job.config.data, path="a.bin")
    changes = (ChangeSection(at_step=1, parallel=ParallelSection(plan="elsewhere/b.toml")),)
    config = msgspec.structs.replace(job.config, data=data, changes=changes)
    kept = resolved(msgspec.structs.replace(job, config=config))
    assert kept.data.path == os.fspath(tmp_path / "a.bin")
    assert kept.changes[0].parallel == ParallelSection(plan="plans/given-1.toml")
