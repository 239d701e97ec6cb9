import os

import msgspec
import pytest

from holdfast.job.config import Change, DataSection, ParallelSection
from holdfast.job.recorder import Recorder, resolved
from holdfast.observe.events import JobStarted, PlanStarted
from holdfast.observe.journal import Journal, read_journal
from holdfast.observe.run_directory import create_run_directory
from holdfast.plan.profile import Profile, parse_profile
from holdfast.plan.text import parse_plan
from support.job_events import step


@pytest.fixture
def directory(tmp_path):
    return create_run_directory(str(tmp_path / "x"), "x")


@pytest.fixture
def journal(directory):
    with Journal(directory / "journal.jsonl", directory / "metrics.jsonl") as journal:
        yield journal


def test_the_beginning(tiny_job, directory, journal):
    job, told = tiny_job(changes=[Change(at_step=1, parallel=ParallelSection(tensor=2))]), []
    Recorder(job, directory, journal, told.append).begin()
    assert [type(event) for event in told] == [JobStarted, PlanStarted]
    assert read_journal(directory / "journal.jsonl") == told
    for epoch, planned in enumerate(job.plans):
        assert parse_plan((directory / f"plans/epoch-{epoch}.toml").read_text()) == planned.plan


def test_the_end(tiny_job, directory, journal):
    recorder = Recorder(tiny_job(), directory, journal, None)
    recorder.tell([step(0, 0.5, 2.0)])
    recorder.profiles.append((0, "n0.g0", Profile(agree=3.0)))
    report = recorder.end("stopped", "because", staging_bytes=77)
    assert (report.outcome, report.reason, report.next_step) == ("stopped", "because", 1)
    assert (report.final_loss, report.staging_bytes) == (2.0, 77)
    assert msgspec.json.decode((directory / "report.json").read_bytes())["steps"] == 1
    assert parse_profile((directory / "profile.json").read_text()).agree == 3.0


def test_without_a_measurement_there_is_no_profile(tiny_job, directory, journal):
    Recorder(tiny_job(), directory, journal, None).end("failed", "no")
    assert not (directory / "profile.json").exists()


def test_nothing_is_left_open_in_the_settings_that_are_kept(tiny_job, tmp_path, monkeypatch):
    job = tiny_job(data=DataSection(seq_len=8), parallel=ParallelSection(replicas=3))
    kept = resolved(job)
    assert kept.data.micro_batches == 6
    assert kept.parallel == job.config.parallel
    assert kept.job.run_dir == ""
    monkeypatch.chdir(tmp_path)
    data = msgspec.structs.replace(job.config.data, path="a.bin")
    changes = (Change(at_step=1, parallel=ParallelSection(plan="elsewhere/b.toml")),)
    config = msgspec.structs.replace(job.config, data=data, changes=changes)
    kept = resolved(msgspec.structs.replace(job, config=config))
    assert kept.data.path == os.fspath(tmp_path / "a.bin")
    assert kept.changes[0].parallel == ParallelSection(plan="plans/epoch-1.toml")
