import msgspec
import pytest

from holdfast.cli.run_control import describe_status
from holdfast.control.coordinator import Coordinator
from holdfast.control.facts import Beat, NodeConnected, ProgressPlace
from holdfast.control.report import Member
from holdfast.control.settings import ControlSettings
from holdfast.control.state import WorkerState
from holdfast.observe.events import Decided
from holdfast.observe.run_clock import RunClock
from holdfast.observe.run_directory import create_run_directory
from holdfast.plan.build import regular_plan
from holdfast.runtime.coordinator.status import Status, make_status
from holdfast.runtime.record.run_log import RunLog
from support.random_plans import make_units

PLAN = regular_plan(make_units(4), replicas=3, micro_batches=6)
A, B = Member("n0.g0", 1), Member("n0.g1", 2)


@pytest.fixture
def run_log(tmp_path):
    run_dir = create_run_directory(str(tmp_path / "run"), "x").path
    run_log = RunLog(run_dir, "gloo", RunClock(0.0, 0.0))
    yield run_log
    run_log.close()


def status_of(run_log, **state) -> Status:
    machine = Coordinator(ControlSettings(plan=PLAN))
    states = (
        WorkerState(member=A, said_hello=True, epoch=1),
        WorkerState(member=B, **{"said_hello": True, **state}),
    )
    node = NodeConnected(node="n0", agent="a", places=(), workers=states, pids={A.name: 7})
    machine.take(node, 0)
    machine.take(Beat(node="n0", sent_ms=0, places={A.name: ProgressPlace(3, 5, 0, 0)}), 1)
    return make_status("x", "runs/x", 9, machine.view, run_log, 4)


@pytest.mark.parametrize(
    ("state", "doing"),
    [
        ({"said_hello": False}, "starting"),
        ({"is_frozen": True}, "frozen"),
        ({"broken": "a group"}, "broken"),
        ({"is_done": True}, "done"),
        ({}, "training"),
    ],
)
def test_what_a_worker_does(run_log, state, doing):
    assert status_of(run_log, **state).workers[1].doing == doing


def test_it_travels_and_reads_well(run_log):
    run_log.tell([Decided(reason="n0.g2#1 is out: was killed by SIGKILL")])
    status = status_of(run_log)
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status
    assert not any("protected" in line for line in describe_status(status))
    protected = msgspec.structs.replace(status, protected_against=("any one worker",))
    assert "protected against the loss of any one worker" in describe_status(protected)
    lines = describe_status(status)
    assert lines[0] == "x: 0 of 9 steps done"
    assert "4 connections refused" in lines
    assert "not there: n0.g2" in lines
    assert "  n0.g0#1    r0.s0      training  pid 7        step 4, action 5" in lines
    assert lines[-1] == "  n0.g2#1 is out: was killed by SIGKILL"
