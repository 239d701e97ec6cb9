import socket
import threading

import pytest

from holdfast.engine.groups import GroupBroken
from holdfast.engine.measure import Stopwatch
from holdfast.engine.trainer import ChangeReport, StepReport
from holdfast.errors import HoldfastError
from holdfast.job.config import Change, ParallelSection
from holdfast.job.wire import (
    Assignment,
    ChangeMessage,
    Channel,
    Leave,
    Measured,
    StepMessage,
    Stop,
)
from holdfast.job.worker import WorkerReporter, explain_failure, pick_device, run_worker

STEP = StepReport(0, 0, 0.5, 2.0, 1.0, 64, 1e-3, True)


class FakeTrainer:
    """As much of a trainer as a reporter asks for."""

    def __init__(self, plan) -> None:
        self.plan, self.stopwatch = plan, Stopwatch()

    def measure(self, seconds: float) -> None:
        self.stopwatch.add("agree", seconds)


@pytest.fixture
def job(tiny_job):
    changes = [Change(at_step=2, parallel=ParallelSection(replicas=2))]
    return tiny_job(changes=changes)


@pytest.fixture
def reporter_of(job):
    """A worker's reporter, and the launcher's end of its channel."""
    channels = []

    def make(worker: str):
        ours, theirs = map(Channel, socket.socketpair())
        channels.extend((ours, theirs))
        assignment = Assignment(
            worker=worker,
            config=job.config,
            plans=job.plans,
            store_host="",
            store_port=0,
            num_threads=1,
            final_dir="",
        )
        reporter = WorkerReporter(assignment, theirs, on_gone=ended.set)
        reporter.trainer = FakeTrainer(job.plans[0].plan)
        return reporter, ours

    ended = threading.Event()
    yield make
    for channel in channels[::2]:
        channel.close()
        assert ended.wait(5)
    for channel in channels[1::2]:
        channel.close()


def test_who_trains_stops_when_asked(reporter_of):
    reporter, launcher = reporter_of("n0.g0")
    assert not reporter.stop_requested()
    launcher.send(Stop())
    assert reporter.stop.wait(5)
    assert reporter.stop_requested()


def test_who_waits_for_its_role_stops_only_when_sent_away(reporter_of):
    reporter, launcher = reporter_of("n0.g1")
    launcher.send(Stop())
    assert reporter.stop.wait(5)
    assert not reporter.stop_requested()
    launcher.send(Leave())
    assert reporter.leave.wait(5)
    assert reporter.stop_requested()


def test_the_warm_up_is_left_out_of_what_is_measured(reporter_of):
    reporter, launcher = reporter_of("n0.g0")
    for seconds in (100.0, 50.0, 1.0, 3.0, 2.0):
        reporter.trainer.measure(seconds)
        reporter.step_done(STEP)
        assert launcher.receive() == StepMessage(report=STEP)
    changed = ChangeReport(2, 1, 0.1, 0, 0, 0)
    reporter.plan_changed(changed)
    measured = launcher.receive()
    assert isinstance(measured, Measured)
    assert (measured.epoch, measured.profile.agree) == (0, 2.0)
    assert launcher.receive() == ChangeMessage(report=changed)
    assert reporter.epoch == 1


def test_where_there_was_only_a_warm_up_it_counts(reporter_of):
    reporter, launcher = reporter_of("n0.g0")
    for seconds in (3.0, 5.0):
        reporter.trainer.measure(seconds)
        reporter.step_done(STEP)
        launcher.receive()
    reporter.send_measured(probe=False)
    measured = launcher.receive()
    assert measured.profile.agree == 4.0


def test_who_has_no_role_measures_nothing(reporter_of):
    reporter, launcher = reporter_of("n0.g1")
    reporter.send_measured(probe=True)
    reporter.step_done(STEP)
    assert launcher.receive() == StepMessage(report=STEP)


def test_errors_in_one_line():
    told = explain_failure(HoldfastError("x.bin has token 300"))
    assert (told.line, told.is_consequence) == ("x.bin has token 300", False)
    assert explain_failure(ValueError("no\nmore")).line == "ValueError: no"
    assert explain_failure(GroupBroken("reduce group")).is_consequence


def test_a_launcher_that_hangs_up_before_the_assignment():
    ours, theirs = socket.socketpair()
    ours.shutdown(socket.SHUT_WR)
    assert run_worker(theirs) == 1
    theirs.close()
    ours.close()


def test_the_device_of_a_worker(job, monkeypatch):
    import msgspec

    assert pick_device(job.config, "n0.g5") == "cpu"
    chosen = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    section = msgspec.structs.replace(job.config.job, device="cuda")
    config = msgspec.structs.replace(job.config, job=section)
    assert pick_device(config, "n0.g5") == "cuda:1"
    assert chosen == [1]
