"""The agent makes memory for those who ask, says what is in it, and has checkpoints written."""

import asyncio

import pytest

from holdfast.job import agent_snapshots
from holdfast.job.agent_snapshots import AgentSnapshots
from holdfast.job.arenas import Arenas, pack_layouts
from holdfast.job.config import JobConfig, JobSection, SnapshotSection
from holdfast.job.messages import (
    ArenaReady,
    ArenaWanted,
    Assignment,
    DropArenas,
    Keeps,
    Persist,
    Persisted,
    PersistSpec,
    Sealed,
)
from holdfast.job.template import Exited, Forked
from holdfast.plan.build import regular_plan
from holdfast.snapshot.layout import Version
from holdfast.snapshot.share import plan_shares
from support.random_plans import make_units

MINE, LATER = (
    plan_shares(
        regular_plan(make_units(2), replicas=2, micro_batches=n, devices_per_node=1)
    ).layouts[0]
    for n in (2, 4)
)
V1 = Version(1, 1)


class Process:
    """Stands for a worker, or for the one that writes."""

    name, ticket = "n0.g0", 5

    def __init__(self, *arguments):
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
    monkeypatch.setattr(agent_snapshots, "Arenas", lambda job: Arenas(job, tmp_path))
    monkeypatch.setattr(agent_snapshots, "WorkerProcess", Process)
    config = JobConfig(
        job=JobSection(steps=1), snapshot=SnapshotSection(every=1, persist_every_steps=7)
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
        agent.hear(worker, ArenaWanted(layouts=pack_layouts(layouts)))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others)

    asyncio.run(talk())


def test_memory_for_one_who_asks(agent, tmp_path):
    worker = Process()
    ask(agent, worker, MINE)
    (ready,) = worker.sent
    assert isinstance(ready, ArenaReady)
    assert (ready.plan, ready.path.startswith(str(tmp_path))) == (MINE.plan, True)


def test_no_memory_is_said_and_nothing_ends(agent, monkeypatch, capsys):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Arenas, "make", fail)
    worker = Process()
    ask(agent, worker, MINE)
    assert worker.sent == []
    assert "no arena for n0.g0" in capsys.readouterr().out


def test_a_sealed_version_is_told(agent, told):
    ask(agent, Process(), MINE)
    agent.hear(Process(), Sealed(plan=MINE.plan, version=V1))
    (keeps,) = told
    assert isinstance(keeps, Keeps)
    assert [held.worker for held in keeps.arenas] == ["n0.g0"]


def test_only_what_nobody_uses_is_dropped(agent, told):
    worker = Process()
    ask(agent, worker, MINE)
    agent.obey(DropArenas(version=V1, plan=LATER.plan))
    assert len(agent.held()) == 1, "the worker is still in it"
    ask(agent, worker, LATER)
    agent.obey(DropArenas(version=V1, plan=LATER.plan))
    assert [held.plan for held in agent.held()] == [LATER.plan]
    assert len(told) == 1


def test_checkpoints_are_written_by_a_process_of_their_own(agent, told):
    agent.obey(Persist(version=V1))
    writer = agent._writer
    spec, offer = writer.sent
    assert isinstance(spec, PersistSpec)
    assert (spec.memory, spec.checkpoints, spec.every_steps) == ("j", "c", 7)
    assert offer == Persist(version=V1)
    assert agent.heard(Forked(5, 77))
    written = Persisted(version=V1, reason="", seconds=0.1, path="p")
    agent._hear_writer(writer, written)
    assert told == [written]
    assert agent.heard(Exited(5, 0))
    assert writer.calls == [77, "ended"]
    assert not agent.heard(Exited(5, 0))
    agent.obey(Persist(version=V1))
    assert agent._writer is not writer


def test_a_lost_node_has_no_memory(agent, tmp_path):
    ask(agent, Process(), MINE)
    agent.lose()
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
