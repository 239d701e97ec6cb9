import socket
import threading

import msgspec
import pytest
import torch

from holdfast.control.effects import Leave, Stop, Void
from holdfast.control.order import Freeze, FullPlan, Order
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, StepReport
from holdfast.engine.measure import Stopwatch
from holdfast.engine.state import Slice
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.wire.frames import BY_WORKER, FROM_WORKER, Channel
from holdfast.runtime.wire.host_messages import PeerAccess
from holdfast.runtime.wire.messages import Assignment, FaultMessage, Finished, Measured
from holdfast.runtime.worker.agent_link import WorkerLink

STEP = StepReport(0, 1, 0.5, 2.0, 1.0, 64, 1e-3, True)
STATE = WorkerState(member=Member("n0.g0", 1), said_hello=True)
ORDER = Order(number=1, kind="start", plan=FullPlan("x"), incarnations={"n0.g0": 1})


class FakeTrainer:
    """As much of a trainer as a link asks for."""

    staging_bytes = 7
    emulated = None

    def __init__(self, plan) -> None:
        self.plan, self.stopwatch, self.slices = plan, Stopwatch(), {}

    def measure(self, seconds: float) -> None:
        self.stopwatch.add("agree", seconds)


@pytest.fixture
def ends(tiny_job):
    """A worker's link, and the agent's end of its channel."""
    job = tiny_job()
    ours, theirs = socket.socketpair()
    agent, channel = Channel(ours, FROM_WORKER), Channel(theirs, BY_WORKER)
    assignment = Assignment(
        worker="n0.g0", config=job.config, store_host="", store_port=0, num_threads=1, final_dir=""
    )
    gone, faults = threading.Event(), []
    link = WorkerLink(assignment, channel, on_gone=gone.set, on_fault=faults.append)
    link.trainer = FakeTrainer(job.plans[0].plan)
    link.faults = faults
    link.listen()
    yield link, agent
    agent.close()
    assert gone.wait(5)
    channel.close()


def test_words_come_in_their_order(ends):
    link, agent = ends
    assert link.wait(0) is None
    sent = [
        ORDER,
        Void(number=3, reason="why"),
        Stop(),
        Leave(),
    ]
    for message in sent:
        agent.send(message)
    heard = [link.wait(5) for _ in sent]
    assert heard == sent


def test_a_freeze_is_known_before_it_is_read(ends):
    link, agent = ends
    woken = threading.Event()
    link.on_freeze(lambda reason: woken.set())
    agent.send(Freeze(4, "n1.g0 is out"))
    assert woken.wait(5)
    assert link.newest_freeze == 4
    assert link.wait(0) == Freeze(4, "n1.g0 is out")


def test_faults_are_passed_on(ends):
    link, agent = ends
    fault = Fault(kind="SLOW", target="n0.g0")
    agent.send(FaultMessage(fault=fault))
    agent.send(Stop())
    link.wait(5)
    assert link.faults == [fault]


def test_the_warm_up_is_left_out_of_what_is_measured(ends):
    link, agent = ends
    link.tell(WorkerState(member=STATE.member, epoch=1))
    assert isinstance(agent.receive(), WorkerState)
    for seconds in (100.0, 50.0, 1.0, 3.0, 2.0):
        link.trainer.measure(seconds)
        link.step_done(STEP)
        assert agent.receive() == STEP
    link.tell(WorkerState(member=STATE.member, epoch=2))
    assert isinstance(agent.receive(), WorkerState)
    measured = agent.receive()
    assert isinstance(measured, Measured)
    assert (measured.epoch, measured.profile.agree) == (1, 2.0)


def test_where_there_was_only_a_warm_up_it_counts(ends):
    link, agent = ends
    for seconds in (3.0, 5.0):
        link.trainer.measure(seconds)
        link.step_done(STEP)
        agent.receive()
    link.send_measured(probe=False)
    assert agent.receive().profile.agree == 4.0


def test_reports_and_the_end(ends):
    link, agent = ends
    change, recovery = ChangeReport(2, 1, 0.1, 0, 0, 0), RecoveryReport(2, 3, 0.1, 2, False)
    link.plan_changed(change)
    link.recovered(recovery)
    link.finished(9)
    assert agent.receive() == change
    assert agent.receive() == recovery
    finished = agent.receive()
    assert isinstance(finished, Finished)
    assert (finished.next_step, finished.staging_bytes) == (9, 7)


@pytest.fixture
def away(ends, tmp_path, monkeypatch):
    """The shared directory of a job that hosts join is not there when the worker has finished."""
    link, agent = ends
    monkeypatch.setattr("holdfast.runtime.worker.agent_link.TRY_AGAIN_S", 0.01)
    link._assignment = msgspec.structs.replace(
        link._assignment,
        final_dir=str(tmp_path / "shared" / "final.part"),
        access=PeerAccess(node="n0", secret="", peers={}),
    )
    value = torch.nn.Parameter(torch.ones(2))
    link.trainer.slices = {"w": Slice("w", ((0, 2),), value, {})}
    finishing = threading.Thread(target=link.finished, args=(9,))
    finishing.start()
    yield agent
    finishing.join(20)
    assert not finishing.is_alive()


def test_a_shared_directory_that_is_away_at_the_end_is_waited_for(away, tmp_path):
    assert not (tmp_path / "shared").exists()  # it is not made anew in its place
    (tmp_path / "shared").mkdir()
    finished = away.receive()
    assert (finished.final_error, finished.final_bytes > 0) == ("", True)


def test_a_freeze_does_not_wait_for_it(away):
    away.send(Freeze(round=7, reason="a worker is lost"))
    assert "is not whole" in away.receive().final_error
