import os
import signal
import time

import pytest

from holdfast.observe.run_clock import RunClock
from holdfast.runtime.agent.agent import AgentSpec
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.launch.signals import SignalBox
from holdfast.runtime.launch.store import bind, connect_store
from holdfast.runtime.launch.supervisor import (
    AgentLost,
    CoordinatorLost,
    Signalled,
    StoreLost,
    Supervisor,
    Told,
)
from holdfast.runtime.wire.messages import Assignment

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def people(fork_server, tmp_path):
    with (
        SignalBox() as box,
        Supervisor(fork_server, fork_server.light, tmp_path, box) as supervisor,
    ):
        box.begin()
        yield supervisor


def agent(port: int) -> AgentSpec:
    return AgentSpec(
        node="n0",
        agent="a",
        places=("n0.g0",),
        host="127.0.0.1",
        port=port,
        secret="a secret of the job",
        heartbeat_ms=100,
        log_dir="",
        assignment=Assignment(
            worker="",
            config=JobConfig(job=JobSection(steps=1)),
            store_host="",
            store_port=0,
            num_threads=1,
            final_dir="",
        ),
    )


def wait_for(people, kind):
    deadline = time.monotonic() + 20
    while notices := people.wait(deadline):
        for notice in notices:
            if isinstance(notice, kind):
                return notice
    raise AssertionError(f"no {kind.__name__}")


def pid_of(people, child):
    """Once it is forked."""
    while not child.pid:
        people.wait(time.monotonic() + 0.02)
    return child.pid


def test_the_end_of_an_agent_is_told(people):
    with bind("127.0.0.1", 0) as listener:
        people.start_agent(agent(listener.getsockname()[1]))
        os.kill(pid_of(people, people._agents["n0"]), signal.SIGKILL)
        assert wait_for(people, AgentLost) == AgentLost("n0", "was killed by SIGKILL")
    assert people.is_empty


def test_the_last_words_of_a_coordinator_come_before_its_end(people, tiny_job, tmp_path):
    job = tiny_job()
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    spec = CoordinatorSpec(
        run_dir=os.fspath(run_dir),
        secret="a secret of the job",
        config=job.config,
        plans=job.plans,
        backend="gloo",
        clock=RunClock(0.0, 0.0),
    )
    with bind("127.0.0.1", 0) as listener:
        people.start_coordinator(spec, listener)
        journal = run_dir / "control.jsonl"
        while not (journal.exists() and journal.stat().st_size):  # it has taken its term
            people.wait(time.monotonic() + 0.02)
        os.kill(pid_of(people, people._coordinator), signal.SIGKILL)
        assert wait_for(people, CoordinatorLost).how == "was killed by SIGKILL"
        people.start_coordinator(spec, listener)
        assert isinstance(wait_for(people, Told), Told), "it says that it took over"


def test_the_store_serves_until_it_is_lost(people):
    with bind("127.0.0.1", 0) as listener:
        people.start_store(listener)
        client = connect_store(*listener.getsockname())
        client.set("key", "value")
        assert client.get("key") == b"value"
        assert people.is_empty, "nothing waits for it"
        os.kill(pid_of(people, people._store), signal.SIGKILL)
        assert wait_for(people, StoreLost).how == "was killed by SIGKILL"
        people.start_store(listener)
        anew = client.clone()
        anew.set("key", "another")
        assert anew.get("key") == b"another"


def test_signals_are_notices(people):
    os.kill(os.getpid(), signal.SIGTERM)
    assert wait_for(people, Signalled) == Signalled(signal.SIGTERM)


def test_what_is_left_at_the_end_is_ended(fork_server, tmp_path):
    with bind("127.0.0.1", 0) as listener:
        with (
            SignalBox() as box,
            Supervisor(fork_server, fork_server.light, tmp_path, box) as people,
        ):
            people.start_agent(agent(listener.getsockname()[1]))
        assert people.is_empty
