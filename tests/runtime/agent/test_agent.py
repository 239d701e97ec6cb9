"""An agent with a real fork server and real workers; the test plays the coordinator."""

import asyncio
import os
import socket
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.control.facts import Beat, NodeConnected, WorkerExited, WorkerStarted
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.plan.profile import Profile
from holdfast.runtime.agent.agent import Agent, AgentSpec
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import Forker
from holdfast.runtime.launch.store import bind, serve_store
from holdfast.runtime.wire.connection import Gate, ServerConnection, Strangers
from holdfast.runtime.wire.frames import FROM_AGENT
from holdfast.runtime.wire.messages import (
    Assignment,
    EndNode,
    Hello,
    InjectFault,
    KillWorker,
    Measured,
    ProbeDone,
    Relayed,
    StartWorker,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

SECRET = "a secret of the job"
FIRST, SECOND = Member("n0.g0", 1), Member("n0.g0", 2)


class Boss:
    """The coordinator's place."""

    def __init__(self):
        self.heard = asyncio.Queue()
        self.connection = None
        self.term = 5

    async def open(self):
        loop = asyncio.get_running_loop()
        self.gate = Gate(
            SECRET,
            self.term,
            Strangers(print, loop.time),
            {"agent": FROM_AGENT},
            lambda connection: setattr(self, "connection", connection),
            lambda connection, message: self.heard.put_nowait(message),
            lambda connection, why: None,
        )
        self._server = await loop.create_server(self.accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def accept(self):
        self.gate.term = self.term
        return ServerConnection(self.gate)

    async def receive(self, kind, of=None):
        """The next message of this kind, or from a worker."""
        while True:
            message = await asyncio.wait_for(self.heard.get(), 20)
            if isinstance(message, kind) and (of is None or isinstance(message.message, of)):
                return message

    def tell(self, *messages):
        for message in messages:
            self.connection.send(message)

    def close(self):
        self._server.close()
        if self.connection is not None:
            self.connection.hang_up()


@pytest.fixture
def run_agent(tiny_job, fork_server, tmp_path):
    """Runs a story with an agent in it; afterwards the agent is ended."""
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    store = serve_store(listener)
    assignment = Assignment(
        worker="",
        config=tiny_job().config,
        store_host="127.0.0.1",
        store_port=port,
        num_threads=1,
        final_dir="",
    )

    async def play(story):
        boss = Boss()
        await boss.open()
        spec = AgentSpec(
            node="n0",
            agent="abc",
            places=("n0.g0",),
            host="127.0.0.1",
            port=boss.port,
            secret=SECRET,
            heartbeat_ms=20,
            log_dir=os.fspath(tmp_path),
            assignment=assignment,
        )
        ours, theirs = socket.socketpair()
        forker = Forker(fork_server.attach())
        agent = asyncio.create_task(Agent(spec, forker).run(theirs))
        try:
            await story(boss, ours)
        finally:
            ours.close()
            await asyncio.wait_for(agent, 20)
            loop = asyncio.get_running_loop()
            loop.remove_reader(theirs)
            loop.remove_reader(forker)
            boss.close()
            forker.close()
            theirs.close()
            await asyncio.sleep(0)

    def run(story):
        asyncio.run(play(story))
        fork_server.settle()
        fork_server.receive()

    yield run
    del store


async def start(boss, member):
    boss.tell(StartWorker(member=member))
    return (await boss.receive(WorkerStarted)).pid


def test_a_worker_is_started_and_spoken_for(run_agent, tmp_path):
    async def story(boss, launcher):
        state = await boss.receive(NodeConnected)
        assert (state.node, state.agent, state.places) == ("n0", "abc", ("n0.g0",))
        assert state.workers == ()
        pid = await start(boss, FIRST)
        assert (await boss.receive(Relayed, Hello)).message.pid == pid
        told = (await boss.receive(Relayed, WorkerState)).message
        assert (told.member, told.said_hello) == (FIRST, True)
        assert isinstance(await boss.receive(Beat), Beat)
        boss.tell(EndNode())

    run_agent(story)
    assert (tmp_path / "n0.g0.log").exists()


def test_it_comes_back_and_says_everything_again(run_agent):
    async def story(boss, launcher):
        await boss.receive(NodeConnected)
        pid = await start(boss, FIRST)
        told = (await boss.receive(Relayed, WorkerState)).message
        boss.connection.hang_up()
        state = await boss.receive(NodeConnected)
        assert state.workers == (told,)
        assert state.pids == {"n0.g0": pid}

    run_agent(story)


def test_a_name_is_used_again_only_when_its_process_is_gone(run_agent):
    async def story(boss, launcher):
        await boss.receive(NodeConnected)
        await start(boss, FIRST)
        boss.tell(StartWorker(member=FIRST), StartWorker(member=SECOND))
        exited = await boss.receive(WorkerExited)
        assert (exited.member, exited.how) == (FIRST, "was killed by SIGKILL")
        assert (await boss.receive(WorkerStarted)).member == SECOND
        boss.tell(StartWorker(member=FIRST), KillWorker(member=FIRST, reason="late"))
        boss.tell(KillWorker(member=SECOND, reason="fenced"))
        assert (await boss.receive(WorkerExited)).member == SECOND

    run_agent(story)


def test_a_coordinator_of_a_lower_term_is_not_believed(run_agent, caplog):
    async def story(boss, launcher):
        await boss.receive(NodeConnected)
        boss.term = 4
        boss.connection.hang_up()
        while "refused a coordinator of term 4: 5 was seen" not in caplog.text:
            await asyncio.sleep(0.005)
        boss.term = 6
        await boss.receive(NodeConnected)

    run_agent(story)


def test_faults_on_purpose(run_agent):
    async def story(boss, launcher):
        await boss.receive(NodeConnected)
        await start(boss, FIRST)
        await boss.receive(Relayed, WorkerState)
        boss.tell(InjectFault(fault=Fault(kind="SIGSTOP", target="n0.g0", duration_s=0.001)))
        boss.tell(InjectFault(fault=Fault(kind="SIGKILL", target="n0.g7")))
        boss.tell(InjectFault(fault=Fault(kind="OS_ABORT", target="n0.g0")))
        assert (await boss.receive(WorkerExited)).how == "was killed by SIGABRT"
        boss.tell(InjectFault(fault=Fault(kind="PARTITION", duration_s=0.001)))
        await boss.receive(NodeConnected)

    run_agent(story)


def test_it_ends_with_the_launcher(run_agent):
    async def story(boss, launcher):
        await boss.receive(NodeConnected)
        await start(boss, FIRST)

    run_agent(story)


@pytest.fixture
def spec(tiny_job):
    return AgentSpec(
        node="n0",
        agent="a",
        places=("n0.g0",),
        host="h",
        port=1,
        secret="s",
        heartbeat_ms=100,
        log_dir="x",
        assignment=Assignment(
            worker="",
            config=tiny_job().config,
            store_host="",
            store_port=0,
            num_threads=1,
            final_dir="",
        ),
    )


def test_a_spec_travels(spec):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=AgentSpec) == spec


def test_what_a_probe_has_shown_is_not_told_to_another_coordinator(spec):
    """It has ordered none, or another one of that number."""
    agent, worker = Agent(spec, SimpleNamespace()), SimpleNamespace(member=FIRST)
    measured = Measured(epoch=1, profile=Profile())
    agent._receive(worker, measured)
    agent._receive(worker, ProbeDone(number=1, seconds=0.1))
    _, *kept = agent._everything()
    assert kept == [Relayed(member=FIRST, message=measured)]
