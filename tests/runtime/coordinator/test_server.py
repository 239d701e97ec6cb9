"""A coordinator in a run of real processes: lost, asked, attacked, and told to break things."""

import asyncio
import os
import signal
import socket

import msgspec
import numpy as np
import psutil
import pytest

from holdfast.observe.events import (
    CoordinatorStarted,
    FaultInjected,
    PlanChanged,
    Recovered,
    StepDone,
    WorkersReady,
)
from holdfast.observe.journal import read_journal
from holdfast.observe.run_clock import RunClock
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import RecoverySection
from holdfast.runtime.coordinator.machine_settings import settings_of
from holdfast.runtime.coordinator.server import CoordinatorServer
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.launch.store import bind
from holdfast.runtime.wire.client import ask
from holdfast.runtime.wire.messages import Done, InjectRequest, StatusReply, StatusRequest
from support.strangers import attack_in_many_ways

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

SHAPE = ParallelSection(replicas=2, stages=2, devices_per_node=2)
PATIENT = RecoverySection(hang_floor_ms=20_000)
"""Test machines are loaded: no worker is called hung here."""


@pytest.fixture(scope="module")
def undisturbed():
    """Losses of the run that nothing happens to; made when first asked for."""
    return []


@pytest.fixture
def run(tiny_job, fork_server, tmp_path, undisturbed):
    """A run with something done to it, compared with the one that nothing happens to."""

    def start(actions=None, until=None, **job):
        pids, told = {}, []

        def on_event(event):
            told.append(event)
            if isinstance(event, WorkersReady):
                pids.update(event.pids)
            if isinstance(event, StepDone) and actions and event.step in actions:
                actions[event.step](pids)
            if until is not None and until(event):
                os.kill(os.getpid(), signal.SIGTERM)

        settings = {"parallel": SHAPE, "recovery": PATIENT, "dtype": "float64", "steps": 30}
        result = run_job(tiny_job(**settings | job), on_event=on_event, fork_server=fork_server)
        assert [step.step for step in result.steps] == list(range(len(result.steps)))
        return result, told

    if not undisturbed:
        undisturbed += start(run_dir=os.fspath(tmp_path / "plain"))[0].losses
    return start


def kill(name):
    return lambda pids: os.kill(pids[name], signal.SIGKILL)


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def test_the_log_of_a_run_that_nothing_happens_to_warns_of_nothing(run, tmp_path):
    """Agents hang up at its end: that is no loss."""
    run(steps=3)
    assert "warning" not in (tmp_path / "run" / "logs" / "coordinator.log").read_text()


def test_a_worker_that_is_killed_comes_back(run, undisturbed):
    result, told = run({4: kill("n1.g0")})
    np.testing.assert_allclose(result.losses, undisturbed, rtol=1e-9)
    (recovered,) = of(Recovered, told)
    assert recovered.lost == ("n1.g0",)
    assert result.report.recoveries == (recovered,)
    assert [change.joining for change in of(PlanChanged, told)] in ([], [("n1.g0",)])


def test_a_lost_coordinator_is_not_missed(run, undisturbed, tmp_path):
    faults = [Fault(kind="COORDINATOR_LOSS", at_step=step) for step in (4, 12)]
    result, told = run(faults=faults)
    np.testing.assert_allclose(result.losses, undisturbed, rtol=1e-9)
    assert [event.term for event in of(CoordinatorStarted, told)] == [2, 3]
    assert of(Recovered, told) == []
    assert len(read_journal(tmp_path / "run" / "journal.jsonl")) == len(told) - 30


def test_a_worker_dies_while_there_is_no_coordinator(run, undisturbed, fork_server):
    def kill_both(pids):
        coordinator, *_ = psutil.Process(fork_server.light.pid).children()
        coordinator.suspend()
        os.kill(pids["n0.g1"], signal.SIGKILL)
        coordinator.kill()

    result, told = run({4: kill_both})
    np.testing.assert_allclose(result.losses, undisturbed, rtol=1e-9)
    assert [event.lost for event in of(Recovered, told)] == [("n0.g1",)]


def test_a_lost_node(run, undisturbed):
    rerouted = msgspec.structs.replace(PATIENT, plan="reroute")
    result, told = run(faults=[Fault(kind="NODE_LOSS", target="n1", at_step=5)], recovery=rerouted)
    np.testing.assert_allclose(result.losses, undisturbed, rtol=1e-9)
    assert [event.target for event in of(FaultInjected, told)] == ["n1"]
    assert [event.lost for event in of(Recovered, told)] == [("n1.g0", "n1.g1")]
    assert len(of(PlanChanged, told)) == 0


@pytest.mark.timeout(180)
def test_a_node_may_be_started_again(run, undisturbed):
    """The run goes on until both of its workers have joined; the planner would have them wait until
    that pays for itself.
    """
    joined = []

    def is_whole(event):
        joined.extend(event.joining if isinstance(event, PlanChanged) else ())
        return isinstance(event, PlanChanged) and len(set(joined)) == 2

    result, _ = run(
        until=is_whole,
        steps=100_000,
        faults=[Fault(kind="NODE_LOSS", target="n1", at_step=5)],
        recovery=RecoverySection(hang_floor_ms=20_000, restart_nodes=True, plan="reroute"),
    )
    assert result.exit_code == 143
    both = min(len(result.losses), len(undisturbed))
    np.testing.assert_allclose(result.losses[:both], undisturbed[:both], rtol=1e-9)
    assert sorted(set(joined)) == ["n1.g0", "n1.g1"]


def test_a_stopped_worker_and_its_zombie(run, undisturbed):
    result, told = run(
        faults=[Fault(kind="SIGSTOP", target="n0.g0", at_step=5)],
        recovery=RecoverySection(hang_floor_ms=300),
    )
    np.testing.assert_allclose(result.losses, undisturbed, rtol=1e-9)
    assert "n0.g0" in of(Recovered, told)[0].lost


def test_status_and_inject(run, undisturbed, tmp_path):
    """From outside, in the middle of a run."""
    answers = []
    questions = {
        6: [StatusRequest(), InjectRequest(fault=Fault(kind="SIGKILL", target="r1.s1"))],
        7: [InjectRequest(fault=Fault(kind="SIGKILL", target="n9.g0"))],
    }

    def put(step):
        return lambda pids: answers.extend(
            ask(tmp_path / "run", "test", question, {}) for question in questions[step]
        )

    result, told = run({step: put(step) for step in questions})
    np.testing.assert_allclose(result.losses, undisturbed, rtol=1e-9)
    status, done, refused = answers
    assert isinstance(status, StatusReply)
    assert b'"shape":"2 replicas x 2 stages"' in status.status
    assert isinstance(done, Done)
    assert done.text.startswith("SIGKILL for n1.g1, after ")
    assert not refused.ok
    assert [event.lost for event in of(Recovered, told)] == [("n1.g1",)]


def test_strangers_are_refused_and_the_job_does_not_notice(run, undisturbed, tmp_path):
    """A wrong secret, a gigabyte that never comes, 10,000 garbled messages."""
    run_dir, found = tmp_path / "run", []

    def attack(pids):
        host, _, port = (run_dir / "address").read_text().strip().rpartition(":")
        secret = (run_dir / "secret").read_text()
        attack_in_many_ways(host, int(port), 10_000, 7, secret)
        found.append(ask(run_dir, "test", StatusRequest(), {}))

    result, told = run({3: attack}, steps=60)
    np.testing.assert_allclose(result.losses[:30], undisturbed, rtol=1e-9)
    assert of(Recovered, told) == of(CoordinatorStarted, told) == of(FaultInjected, told) == []
    refused = int(found[0].status.partition(b'"num_refused":')[2].partition(b",")[0])
    assert refused > 200
    log = (run_dir / "logs" / "coordinator.log").read_text()
    assert log.count("refused 127.0.0.1") == 1


def test_settings_are_the_job_files(tiny_job):
    job = tiny_job(recovery=RecoverySection(mode="fast", max_restarts=0, settle_ms=7))
    spec = CoordinatorSpec(
        run_dir="",
        secret="",
        config=job.config,
        plans=job.plans,
        backend="gloo",
        clock=RunClock(0.0, 0.0),
    )
    settings = settings_of(spec)
    assert (settings.mode, settings.settle_ms) == ("fast", 7)
    assert settings.max_restarts == 0


@pytest.fixture
def server(tiny_job, tmp_path):
    job = tiny_job()
    (tmp_path / "out").mkdir()
    spec = CoordinatorSpec(
        run_dir=os.fspath(tmp_path / "out"),
        secret="",
        config=job.config,
        plans=job.plans,
        backend="gloo",
        clock=RunClock(0.0, 0.0),
    )
    server = CoordinatorServer(spec)
    yield server
    server._journal.close()
    server._run_log.close()


def test_the_first_exception_ends_the_process_and_nothing_is_done_after_it(server):
    done = []

    def act(what):
        if what == "break":
            raise OSError("no space left on device")
        done.append(what)

    guarded = server._guarded(act)
    for what in ("one", "break", "two"):
        guarded(what)
    assert done == ["one"]
    assert server._ended.is_set()
    assert str(server._error) == "no space left on device"


def test_an_exception_beside_messages_ends_the_process_too(server, monkeypatch):
    def fail(now_ms):
        raise ZeroDivisionError("a mistake in the coordinator")

    async def live():
        try:
            async with asyncio.timeout(20):
                await server.run(theirs, listener)
        finally:
            server._link.close()

    monkeypatch.setattr(server._machine, "next_deadline_ms", fail)
    ours, theirs = socket.socketpair()
    is_told = pytest.raises(ZeroDivisionError, match="a mistake in the coordinator")
    with ours, theirs, bind("127.0.0.1", 0) as listener, is_told:
        asyncio.run(live())
