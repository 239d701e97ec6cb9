"""Every step is logged once: over restores, new starts and a launcher that was killed."""

import csv
import importlib
import struct
import sys
import types
from pathlib import Path

import msgspec
import pytest

from holdfast.observe.events import (
    CheckpointWritten,
    Evaluated,
    JobEnded,
    JobStarted,
    StepDone,
    event_fields,
)
from holdfast.observe.loggers.csv_log import CsvLog
from holdfast.observe.loggers.logger import LogPoint, LogRun, LogWriter
from holdfast.observe.run_directory import JOURNAL, METRICS


def step(number, loss=None):
    return StepDone(
        step=number,
        epoch=1,
        loss=1.0 / (number + 1) if loss is None else loss,
        norm=None,
        tokens=8,
        tokens_per_s=8.0,
        step_time_s=1.0,
        learning_rate=0.1,
        applied=True,
    )


def started(folder, run=1):
    return JobStarted(
        name="job",
        version="1",
        steps=9,
        model="m",
        num_parameters=1,
        num_workers=1,
        micro_batches=1,
        run_dir=str(folder),
        run=run,
    )


ENDED = JobEnded(outcome="finished", next_step=9, loss=1.0, seconds=1.0)


def run_log(folder, open_logger, events, *, run=1, every=1, flush=True):
    """One run of a launcher: what is told is also in the files, as in a job."""
    writer = LogWriter("mine", open_logger, every=every, settings={"job.steps": 9})
    writer.on_start(started(folder, run))
    for event in events:
        name = METRICS if isinstance(event, StepDone) else JOURNAL
        line = msgspec.json.encode({"time": "2026-01-01T00:00:00Z", **event_fields(event)})
        with (Path(folder) / name).open("ab") as file:
            file.write(line + b"\n")
        writer.on_event(event)
        if isinstance(event, JobEnded):
            writer.on_end(event)
        elif flush:
            writer.flush()


class Kept:
    """A logger of the user's own."""

    id = "abc"

    def __init__(self, run):
        self.run, self.points, self.outcome = run, [], ""

    def write(self, points):
        self.points += points

    def close(self, outcome):
        self.outcome = outcome


class Opener:
    def __init__(self):
        self.opened = []

    def __call__(self, run):
        self.opened.append(Kept(run))
        return self.opened[-1]

    @property
    def steps(self):
        return [p.step for kept in self.opened for p in kept.points if "train/loss" in p.values]


def test_steps_that_are_done_again_are_logged_once(tmp_path):
    opened = Opener()
    again = [step(1, 9.0), step(2, 9.0)]
    run_log(tmp_path, opened, [step(0), step(1), step(2), *again, step(3), ENDED])
    assert opened.steps == [1, 2, 3, 4]
    kept = opened.opened[0]
    assert kept.outcome == "finished"
    assert kept.points[2].values["train/loss"] == pytest.approx(1 / 3)
    assert "train/grad_norm" not in kept.points[0].values, "what is not finite is left out"


def test_a_run_that_goes_on_logs_what_the_killed_one_could_not(tmp_path):
    opened = Opener()
    run_log(tmp_path, opened, [step(0), step(1)])
    run_log(tmp_path, opened, [step(2), step(3)], run=2, flush=False)  # killed: nothing is written
    assert opened.steps == [1, 2]
    run_log(tmp_path, opened, [step(3), step(4), ENDED], run=3)
    assert opened.steps == [1, 2, 3, 4, 5]
    assert [kept.run.next_step for kept in opened.opened] == [0, 2, 2]
    assert [kept.run.id for kept in opened.opened] == ["", "abc", "abc"]


def test_some_steps_evaluations_and_events(tmp_path):
    opened = Opener()
    checkpoint = CheckpointWritten(step=2, path="x", seconds=1.0, reason="asked for")
    evaluated = Evaluated(step=4, loss=2.0, tokens=1, seconds=1.0)
    first = msgspec.structs.replace(evaluated, step=0)
    events = [first, step(0), step(1), checkpoint, step(2), step(3), evaluated, evaluated, ENDED]
    run_log(tmp_path, opened, events, every=2)
    assert opened.steps == [1, 2, 4]
    points = opened.opened[0].points
    assert [p.step for p in points if "eval/loss" in p.values] == [0, 4]
    assert [(p.step, p.text) for p in points if p.text] == [(2, "checkpoint: x (asked for)")]


def test_points_wait_while_a_logger_fails(tmp_path):
    opened = Opener()
    writer = LogWriter("mine", opened)
    writer.on_start(started(tmp_path))
    kept, write = opened.opened[0], opened.opened[0].write

    def fail(points):
        raise OSError("away")

    kept.write = fail
    writer.on_event(step(0))
    with pytest.raises(OSError, match="away"):
        writer.flush()
    kept.write = write
    writer.on_event(step(1))
    writer.flush()
    assert opened.steps == [1, 2]


def test_csv(tmp_path):
    for run, events in ((1, [step(0), step(1)]), (2, [step(1), step(2), ENDED])):
        run_log(tmp_path, CsvLog, events, run=run)
    with (tmp_path / "log" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "train/loss"]
    assert [int(row["step"]) for row in rows] == [1, 2, 3]
    assert float(rows[2]["value"]) == 1 / 3


def tensorboard_scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars("train/loss")], found


@pytest.mark.slow
def test_tensorboard_reads_its_file_back(tmp_path):
    pytest.importorskip("tensorboard")
    from holdfast.observe.loggers.tensorboard_log import TensorBoardLog

    run_log(tmp_path, TensorBoardLog, [step(0), step(1)])
    checkpoint = CheckpointWritten(step=3, path="x", seconds=1.0, reason="asked for")
    run_log(tmp_path, TensorBoardLog, [step(1), step(2), checkpoint, ENDED], run=2)
    scalars, found = tensorboard_scalars(tmp_path / "tensorboard")
    assert [number for number, _ in scalars] == [1, 2, 3]
    assert [value for _, value in scalars] == pytest.approx([1.0, 1 / 2, 1 / 3])
    texts = [event.tensor_proto.string_val[0].decode() for event in found.Tensors("events")]
    assert texts == ["checkpoint: x (asked for)"]
    assert b"job.steps = 9" in found.Tensors("job")[0].tensor_proto.string_val[0]


@pytest.mark.slow
def test_a_killed_writer_leaves_nothing_twice(tmp_path):
    """Its points are in the file, and the position that says so is not."""
    pytest.importorskip("tensorboard")
    from holdfast.observe.loggers.tensorboard_log import TensorBoardLog

    run_log(tmp_path, TensorBoardLog, [step(0)])
    position = tmp_path / "log" / "mine.json"
    before = position.read_text()
    run_log(tmp_path, TensorBoardLog, [step(1)], run=2)
    position.write_text(before)
    run_log(tmp_path, TensorBoardLog, [step(1), step(2), ENDED], run=3)
    scalars, _ = tensorboard_scalars(tmp_path / "tensorboard")
    assert [number for number, _ in scalars] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore")  # of its libraries
def test_mlflow(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from holdfast.observe.loggers.mlflow_log import MlflowLog

    opened = []

    def open_logger(run):
        opened.append(MlflowLog(run))
        return opened[-1]

    run_log(tmp_path, open_logger, [step(0), step(1)])
    run_log(tmp_path, open_logger, [step(1), step(2), ENDED], run=2)
    assert opened[0].id == opened[1].id
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    history = client.get_metric_history(opened[0].id, "train/loss")
    assert [metric.step for metric in history] == [1, 2, 3]
    run = client.get_run(opened[0].id)
    assert run.info.status == "FINISHED"
    assert run.data.params["job.steps"] == "9"


def wandb_records(path):
    """Of a small file: a head of 7 bytes, then (checksum, length, kind) and the bytes of each."""
    data, at = path.read_bytes(), 7
    while at < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1, "a record that is not cut"
        yield data[at + 7 : at + 7 + length]
        at += 7 + length


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    from holdfast.observe.loggers.wandb_log import WandbLog

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_log(tmp_path, WandbLog, [step(0), step(1), ENDED])
    wandb.teardown()  # a process of theirs writes, also after a run has finished
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = [wandb_internal_pb2.Record.FromString(data) for data in wandb_records(written)]
    history = [record.history for record in records if record.HasField("history")]
    assert [point.step.num for point in history] == [1, 2]
    (project,) = [record.run.project for record in records if record.HasField("run")]
    assert project == "job"


def test_wandb_is_called_as_it_documents(tmp_path, monkeypatch):
    """init(project, name, id, resume, dir, config), run.log(values, step), run.finish(exit_code):
    the real package is asked by the test above, where it is installed.
    """
    calls = []
    run = types.SimpleNamespace(
        log=lambda values, step: calls.append((step, values)),
        finish=lambda exit_code: calls.append(("finish", exit_code)),
    )

    def init(*, project, name, id, resume, dir, config):
        calls.append(("init", project, name, resume, config))
        return run

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    import holdfast.observe.loggers.wandb_log as module

    module = importlib.reload(module)
    opened = module.WandbLog(
        LogRun(
            run_dir=tmp_path, name="job", project="p", run=1, next_step=0, settings={"job.steps": 9}
        )
    )
    opened.write([LogPoint(1, {"train/loss": 2.0}), LogPoint(2, text="recovered")])
    opened.close("failed")
    assert calls == [
        ("init", "p", "job", "allow", {"job.steps": 9}),
        (1, {"train/loss": 2.0}),
        (2, {"events": "recovered"}),
        ("finish", 1),
    ]
    assert opened.id
