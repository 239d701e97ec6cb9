"""The agent makes memory for those who ask, says what is in it, and has checkpoints written."""

import asyncio

import pytest

from holdfast.control.snapshots.messages import (
    Copied,
    Copy,
    DropArenas,
    NodeHolds,
    Persist,
    Persisted,
)
from holdfast.plan.build import regular_plan
from holdfast.runtime.agent import snapshots as agent_snapshots
from holdfast.runtime.agent.snapshots import AgentSnapshots
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.fork_server import Exited, Forked
from holdfast.runtime.wire.messages import Assignment
from holdfast.runtime.wire.snapshot_messages import (
    ArenaReady,
    ArenaWanted,
    CopySpec,
    LightCompleted,
    LightGiven,
    LightSpec,
    PersistSpec,
    Sealed,
)
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.layout import Version
from holdfast.snapshot.memory.node_arenas import NodeArenas, pack_layouts
from holdfast.snapshot.share import plan_shares, staging_layout
from support.random_plans import make_units

MINE, LATER = (
    plan_shares(
        regular_plan(make_units(2), replicas=2, micro_batches=n, devices_per_node=1)
    ).layouts[0]
    for n in (2, 4)
)
_SHARES = plan_shares(regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1))
STAGES = (_SHARES.layouts[0], *(copy for copy in _SHARES.copies if copy.node == "n0"))
V1, V2 = Version(1, 1), Version(2, 1)


class Process:
    """Stands for a worker, or for the one that writes."""

    ticket = 5

    def __init__(self, member=None, *_):
        self.name = member.name if member is not None else "n0.g0"
        self.sent, self.calls = [], []

    def send(self, message):
        self.sent.append(message)

    def forked(self, pid):
        self.calls.append(pid)

    def ended(self):
        self.calls.append("ended")

    def give_back(self):
        self.calls.append("given back")


@pytest.fixture
def told():
    return []


@pytest.fixture
def agent(tmp_path, told, monkeypatch):
    monkeypatch.setattr(agent_snapshots, "WorkerProcess", Process)
    config = JobConfig(
        job=JobSection(steps=1),
        snapshot=SnapshotSection(every=1, persist_every_steps=7, memory_folder=str(tmp_path)),
    )
    assignment = Assignment(
        worker="",
        config=config,
        store_host="",
        store_port=1,
        num_threads=1,
        final_dir="",
        memory="j",
        checkpoints="c",
    )
    agent = AgentSnapshots("n0", assignment, None, tmp_path, told.append)
    yield agent
    agent.close()


def ask(agent, worker, *layouts):
    async def talk():
        agent.receive(worker, ArenaWanted(layouts=pack_layouts(layouts)))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others)

    asyncio.run(talk())


def test_memory_for_one_who_asks(agent, tmp_path):
    worker = Process()
    ask(agent, worker, MINE)
    (ready,) = worker.sent
    assert isinstance(ready, ArenaReady)
    assert (ready.plan, ready.path.startswith(str(tmp_path))) == (MINE.plan, True)


def test_no_memory_is_said_and_nothing_ends(agent, monkeypatch, caplog):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NodeArenas, "make", fail)
    worker = Process()
    ask(agent, worker, MINE)
    assert worker.sent == []
    assert "no snapshot memory for n0.g0" in caplog.text


def test_without_memory_for_copies_there_is_still_its_own(agent, monkeypatch, caplog):
    make = NodeArenas.make

    def fail(arenas, layouts):
        if layouts[0].is_copy:
            raise OSError(28, "No space left on device")
        return make(arenas, layouts)

    monkeypatch.setattr(NodeArenas, "make", fail)
    worker = Process()
    ask(agent, worker, *STAGES)
    assert len(worker.sent) == len(agent.held()) == 1
    assert "No space left" in caplog.text


def test_a_sealed_version_is_told(agent, told):
    ask(agent, Process(), MINE)
    agent.receive(Process(), Sealed(plan=MINE.plan, version=V1, cost=CopyCost(8, 4, 0.5)))
    (keeps,) = told
    assert isinstance(keeps, NodeHolds)
    assert [held.worker for held in keeps.arenas] == ["n0.g0"]
    assert keeps.costs == {Process().name: CopyCost(8, 4, 0.5)}


def give_light(agent, worker, version, before=None):
    agent.receive(worker, LightGiven(version=version, before=before, cost=CopyCost(8, 4, 0.5)))


def test_a_light_version_counts_once_it_is_completed(agent, told):
    worker = Process()
    ask(agent, worker, MINE, staging_layout(MINE))
    ready = worker.sent.pop()
    give_light(agent, worker, V1)
    completing = agent._sidecars["light"]
    spec, order = completing.sent
    assert spec == LightSpec(optimizer=agent._assignment.config.optimizer)
    assert (order.path, order.staging, order.before) == (ready.path, ready.staging, None)
    assert not told
    agent._receive_from_sidecar(completing, LightCompleted(worker="n0.g0", version=V1))
    assert [message.version for message in worker.sent] == [V1]
    assert [held.costs for held in told] == [{"n0.g0": CopyCost(8, 4, 0.5)}]
    assert len(agent.held()) == 1, "what is staged is no version"


def test_what_a_dead_process_was_completing_is_answered(agent, told):
    worker = Process()
    ask(agent, worker, MINE, staging_layout(MINE))
    worker.sent.clear()
    give_light(agent, worker, V1)
    give_light(agent, worker, V2, V1)
    agent.handle_fork_notice(Exited(ticket=Process.ticket, status=-9))
    assert [(m.version, bool(m.error)) for m in worker.sent] == [(V1, True), (V2, True)]
    assert not told
    give_light(agent, worker, V2)
    assert len(agent._sidecars["light"].sent) == 2, "another process"


def test_no_memory_before_all_that_was_given_is_completed(agent):
    worker = Process()
    ask(agent, worker, MINE, staging_layout(MINE))
    worker.sent.clear()

    async def talk():
        give_light(agent, worker, V1)
        agent.receive(worker, ArenaWanted(layouts=pack_layouts((LATER,))))
        (making,) = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait([making], timeout=0.05)
        assert not making.done()
        agent._completed(LightCompleted(worker="n0.g0", version=V1))
        await making

    asyncio.run(talk())
    completed, ready = worker.sent
    assert isinstance(completed, LightCompleted)
    assert isinstance(ready, ArenaReady)


def test_only_what_no_worker_uses_is_dropped(agent, told):
    worker = Process()
    ask(agent, worker, MINE)
    agent.apply(DropArenas(version=V1, plan=LATER.plan))
    assert len(agent.held()) == 1, "the worker is still in it"
    ask(agent, worker, LATER)
    agent.apply(DropArenas(version=V1, plan=LATER.plan))
    assert [held.plan for held in agent.held()] == [LATER.plan]
    assert len(told) == 1


def test_checkpoints_are_written_by_a_process_of_their_own(agent, told):
    agent.apply(Persist(version=V1))
    writer = agent._sidecars["checkpoints"]
    spec, offer = writer.sent
    assert isinstance(spec, PersistSpec)
    assert (spec.memory, spec.checkpoints, spec.every_steps) == ("j", "c", 7)
    assert offer == Persist(version=V1)
    assert agent.handle_fork_notice(Forked(5, 77))
    written = Persisted(version=V1, reason="", seconds=0.1, path="p")
    agent._receive_from_sidecar(writer, written)
    assert told == [written]
    assert agent.handle_fork_notice(Exited(5, 0))
    assert writer.calls == [77, "ended"]
    assert not agent.handle_fork_notice(Exited(5, 0))
    agent.apply(Persist(version=V1))
    assert agent._sidecars["checkpoints"] is not writer


def test_copies_are_made_by_a_process_of_their_own(agent, told, tmp_path):
    ask(agent, Process(), *STAGES)
    copy = Copy(version=V1, plan=STAGES[0].plan)
    agent.apply(copy)
    keeper = agent._sidecars["copies"]
    assert keeper.sent == [CopySpec(memory="j", folder=str(tmp_path), node="n0"), copy]
    agent._receive_from_sidecar(keeper, Copied(version=V1))
    kinds = [type(message) for message in told]
    assert kinds == [NodeHolds, Copied], "what it has, then that it is"


def test_a_process_that_ended_has_not_copied(agent, told):
    ask(agent, Process(), *STAGES)
    agent.apply(Copy(version=V1, plan=STAGES[0].plan))
    assert agent.handle_fork_notice(Exited(5, -9))
    assert told[-1] == Copied(version=V1, error="its process has ended")
    assert agent._sidecars == {}


def test_a_node_that_keeps_no_copies_starts_no_process(agent):
    ask(agent, Process(), MINE)
    agent.apply(Copy(version=V1, plan=MINE.plan))
    assert agent._sidecars == {}


def test_when_a_worker_ends_it_is_told_what_is_left(agent, told, tmp_path):
    ask(agent, Process(), MINE)
    for path in tmp_path.glob("*~*"):
        path.unlink()
    assert not agent.handle_fork_notice(Exited(77, -9))
    assert told == [NodeHolds(node="n0", arenas=())]


def test_a_lost_node_has_no_memory(agent, tmp_path):
    ask(agent, Process(), MINE)
    agent.lose()
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
