"""What does not fit is refused with both values, before anything starts."""

import os

import msgspec
import pytest
import torch.distributed.checkpoint as dcp

from holdfast.errors import HoldfastError
from holdfast.models.llama import initial_state
from holdfast.observe.report import RunReport, format_report
from holdfast.runtime.config.job_file import JobConfig, format_job
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.launch.resume import (
    check_same_model,
    choose_run_dir,
    earlier_job,
    finished_report,
)

EARLIER = JobConfig(job=JobSection(steps=4), model=ModelSection(dropout=0.1))


def resumed(run_dir, dtype="float32", **model) -> JobConfig:
    job = JobSection(steps=9, resume=str(run_dir), dtype=dtype)
    return JobConfig(job=job, model=ModelSection(**model))


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "job.toml").write_text(format_job(EARLIER))
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_layers": 6}, "model.num_layers = 4, this job has model.num_layers = 6"),
        ({"vocab": 512}, "model.vocab = 256, this job has model.vocab = 512"),
        ({"tied": True}, "model.tied = False, this job has model.tied = True"),
        ({"preset": "llama-small"}, "model.dim = 64, this job has model.dim = 256"),
        ({"dtype": "float64"}, "job.dtype = 'float32', this job has job.dtype = 'float64'"),
    ],
)
def test_another_model_is_refused_by_the_job_file_of_the_run(run_dir, changed, words):
    with pytest.raises(HoldfastError) as caught:
        prepare_job(resumed(run_dir, **changed))
    assert words in str(caught.value)


def test_what_does_not_change_the_tensors_may_differ(run_dir):
    config = resumed(run_dir, hidden_parts=4, dropout=0.0)
    check_same_model(config, earlier_job(str(run_dir)), "it")


def report_of(run_dir, outcome, next_step):
    """What a run in this directory came to."""
    run_dir.mkdir(parents=True, exist_ok=True)
    report = RunReport(
        name="run", version="", outcome=outcome, reason="", run_dir=str(run_dir), model="",
        num_parameters=1, num_workers=1, steps=next_step, next_step=next_step, first_loss=None,
        final_loss=None, tokens=0, seconds=1.0, median_step_s=None, tokens_per_s=None,
    )  # fmt: skip
    (run_dir / "report.json").write_text(format_report(report))
    (run_dir / "journal.jsonl").write_text("")
    os.utime(run_dir / "journal.jsonl", (next_step, next_step))
    return run_dir


def asking(**job) -> JobConfig:
    return JobConfig(job=JobSection(**{"steps": 9, **job}))


def test_a_run_is_finished_if_all_steps_that_are_asked_for_are_done(tmp_path):
    run_dir = str(report_of(tmp_path / "a", "finished", 9))
    assert finished_report(asking(run_dir=run_dir)).next_step == 9
    assert finished_report(asking(run_dir=run_dir, steps=12)) is None
    assert finished_report(asking()) is None
    report_of(tmp_path / "a", "stopped", 9)
    assert finished_report(asking(run_dir=run_dir)) is None


def test_auto_goes_on_in_the_newest_directory_that_is_not_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert choose_run_dir(asking(resume="auto")) == asking()
    report_of(tmp_path / "runs" / "run-1", "stopped", 3)
    report_of(tmp_path / "runs" / "run-2", "stopped", 5)
    report_of(tmp_path / "runs" / "run-3", "finished", 9)
    report_of(tmp_path / "runs" / "other-4", "stopped", 8)
    assert choose_run_dir(asking(resume="auto")) == asking(run_dir="runs/run-2")
    assert choose_run_dir(asking(resume="auto", run_dir="x")) == asking(run_dir="x")
    assert choose_run_dir(asking(resume="./x", run_dir="x")) == asking(run_dir="x")
    assert choose_run_dir(asking(resume="y", run_dir="x")) == asking(resume="y", run_dir="x")


def test_the_directory_of_a_run_with_another_model_is_refused(run_dir):
    report_of(run_dir, "stopped", 3)
    config = JobConfig(
        job=JobSection(steps=9, run_dir=str(run_dir)), model=ModelSection(num_layers=6)
    )
    with pytest.raises(HoldfastError, match=r"job.run_dir = .* model.num_layers = 4, this job has"):
        prepare_job(config)


def test_a_job_file_that_cannot_be_read_is_none(tmp_path):
    assert earlier_job(str(tmp_path)) is None
    (tmp_path / "job.toml").write_text("[job]\nsteps = 4\nfrom_the_future = 1\n")
    assert earlier_job(str(tmp_path)) is None


@pytest.fixture
def foreign(tmp_path):
    """A checkpoint that plain DCP wrote."""
    shape = msgspec.structs.replace(ModelSection().shape())
    state = initial_state(shape, seed=0)
    folder = tmp_path / "checkpoints" / "step-3"
    folder.mkdir(parents=True)
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"vocab": 512}, "embed.weight is float32 [256, 64] there, and float32 [512, 64] in this"),
        ({"dtype": "float64"}, "embed.weight is float32 [256, 64] there, and float64 [256, 64]"),
        ({"num_layers": 6}, "has no parameter of block.4.attn_norm"),
    ],
)
def test_another_model_is_refused_by_the_tensors_of_a_foreign_checkpoint(foreign, changed, words):
    with pytest.raises(HoldfastError) as caught:
        prepare_job(resumed(foreign, **changed))
    assert words in str(caught.value)
    assert prepare_job(resumed(foreign)).first_step == 3
