import msgspec
import pytest

from holdfast.control.coordinator import Coordinator
from holdfast.control.facts import NodeConnected
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.observe.events import FaultInjected
from holdfast.observe.run_clock import RunClock
from holdfast.observe.run_directory import create_run_directory
from holdfast.runtime.coordinator.admin_api import AdminApi
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.machine_settings import settings_of
from holdfast.runtime.coordinator.status import Status
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.wire.connection import Strangers
from holdfast.runtime.wire.messages import (
    CheckpointJob,
    Done,
    InjectFault,
    InjectRequest,
    StatusReply,
    StatusRequest,
    StopJob,
)


class FakeConnection:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)
        return 1


@pytest.fixture
def node():
    return FakeConnection()


@pytest.fixture
def stops():
    return []


@pytest.fixture
def make(tiny_job, tmp_path, node, stops):
    """A desk with one worker on one node."""
    opened = []

    def state(faults=()):
        job = tiny_job(faults=faults)
        run_dir = create_run_directory(str(tmp_path / "run"), "x").path
        spec = CoordinatorSpec(
            run_dir=str(run_dir),
            secret="",
            config=job.config,
            plans=job.plans,
            backend="gloo",
            clock=RunClock(0.0, 0.0),
        )
        opened.append(RunLog(run_dir, "gloo", RunClock(0.0, 0.0)))
        machine = Coordinator(settings_of(spec))
        states = (WorkerState(member=Member("n0.g0", 1)),)
        machine.take(NodeConnected(node="n0", agent="a", places=(), workers=states), 0)
        dispatch = Dispatch()
        dispatch.connect("n0", node)
        strangers = Strangers(print, lambda: 0.0)
        admin = AdminApi(
            spec,
            machine.view,
            opened[-1],
            dispatch,
            strangers,
            0,
            stop=lambda: stops.append("asked"),
            checkpoint=stops.append,
        )
        return admin, opened[-1]

    yield state
    for run_log in opened:
        run_log.close()


def test_a_client_stops_the_job(make, stops):
    reply = make()[0].serve(StopJob())
    assert isinstance(reply, Done)
    assert reply.ok
    assert stops == ["asked"]


def test_a_launcher_elsewhere_asks_for_a_checkpoint(make, stops):
    assert make()[0].serve(CheckpointJob(signal="SIGUSR1")) == Done(
        text="a checkpoint, after 0 steps"
    )
    assert stops == ["SIGUSR1"]


def test_how_the_job_is_doing(make):
    reply = make()[0].serve(StatusRequest())
    assert isinstance(reply, StatusReply)
    status = msgspec.json.decode(reply.status, type=Status)
    assert [worker.name for worker in status.workers] == ["n0.g0"]
    assert status.nodes == ("n0",)


def test_a_fault_is_written_down_and_goes_to_its_node(make, node):
    state, run_log = make()
    answer = state.serve(InjectRequest(fault=Fault(kind="SIGKILL", target="r0.s0")))
    assert answer == Done(text="SIGKILL for n0.g0, after 0 steps")
    assert node.sent == [InjectFault(fault=Fault(kind="SIGKILL", target="n0.g0"))]
    (told,) = run_log.recent
    assert isinstance(told, FaultInjected)
    assert (told.fault, told.target, told.step) == ("SIGKILL", "n0.g0", 0)


def test_an_unknown_worker_is_refused(make, node):
    answer = make()[0].serve(InjectRequest(fault=Fault(kind="SIGKILL", target="n9.g0")))
    assert not answer.ok
    assert node.sent == []


def test_the_job_files_faults_come_when_they_are_due(make, node):
    state, _ = make([Fault(kind="SIGSTOP", at_step=0), Fault(kind="SIGSTOP", at_step=1)])
    state.inject_due(0)
    state.inject_due(0)
    assert [told.fault.at_step for told in node.sent] == [0]
