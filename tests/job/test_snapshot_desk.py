"""What is whole is told in time, old memory goes, checkpoints are asked for when they are due."""

import asyncio
from types import SimpleNamespace

import pytest

from holdfast.job.kept import KeptBoard
from holdfast.job.messages import DropArenas, Persist, Persisted
from holdfast.job.snapshot_desk import SnapshotDesk
from holdfast.plan.build import regular_plan
from holdfast.snapshot.layout import Version
from support.kept_state import Crew
from support.random_plans import make_units
from support.snapshots import random_state

PLAN = regular_plan(make_units(2), replicas=3, micro_batches=3, devices_per_node=1)
STATES = {step: random_state(PLAN, seed=step) for step in range(1, 5)}
NEWEST = Version(3, 1)


class Post:
    """Stands for the connections to the agents."""

    def __init__(self):
        self.nodes, self.sent = ["n0", "n1", "n2"], []

    def to_node(self, node, message):
        self.sent.append((node, message))
        return node in self.nodes

    def to_all(self, message):
        self.sent.append(("all", message))

    def take(self, kind):
        return [message for _, message in self.sent if isinstance(message, kind)]


class Office:
    def __init__(self, crew, persists=True):
        self.post, self.facts, self.events, self.left = Post(), [], [], {}
        past = SimpleNamespace(plans={1: PLAN}, epoch_of_step=lambda step: 1)
        self.desk = SnapshotDesk(
            KeptBoard(crew.options),
            past,
            self.post,
            take=self.facts.append,
            tell=self.events.extend,
            reach=lambda node: self.left.get(node, ()),
            persists=persists,
        )
        for node, arenas in crew.held().items():
            self.desk.hear(node, arenas)

    def versions(self):
        """As the machine knows them: of nodes that are there."""
        kept = {fact.node: fact.kept for fact in self.facts}
        return [part.version for node in self.post.nodes for part in kept.get(node, ())]

    def lose(self, node):
        self.post.nodes.remove(node)
        self.desk.lose(node)


@pytest.fixture
def crew(tmp_path):
    crew = Crew(PLAN, tmp_path)
    crew.enter()
    crew.train(STATES)
    yield crew
    crew.close()


@pytest.fixture
def office(crew):
    return Office(crew)


def test_what_is_whole_is_told(office):
    assert office.versions() == [3, 2, 1]


def test_another_node_speaks_when_the_first_is_lost(office):
    office.lose("n0")
    assert office.versions() == [3, 2, 1], "by parity"
    office.lose("n1")
    assert office.versions() == []


def test_memory_that_outlived_its_agent_counts(crew, office):
    office.left = crew.held()
    office.lose("n0")
    office.lose("n1")
    assert office.versions() == [3, 2, 1]


def test_a_node_that_comes_back_says_it_again(crew, office):
    office.facts.clear()
    office.desk.connected("n0", crew.arenas["n0"].held())
    assert office.versions() == [3, 2, 1]


def test_old_memory_goes_once_a_version_is_whole_under_the_plan(office):
    (drop,) = office.post.take(DropArenas)
    assert drop.plan == office.desk._plan


def test_versions_are_offered_and_demanded_where_redundancy_is_used_up(office):
    assert office.post.take(Persist)[-1] == Persist(version=NEWEST)
    office.lose("n2")
    assert office.post.take(Persist)[-1] == Persist(version=NEWEST, demand="redundancy is used up")


def test_a_checkpoint_is_told(office):
    office.desk.written(Persisted(version=NEWEST, reason="due", seconds=0.1, path="p"))
    assert [(event.step, event.path) for event in office.events] == [(3, "p")]


def test_the_end_waits_for_the_last_checkpoint(office):
    ended = []

    async def end():
        office.desk.persist_last("the job stops", lambda: ended.append(1))
        assert ended == []
        assert office.post.take(Persist)[-1].demand == "the job stops"
        office.desk.written(Persisted(version=NEWEST, reason="", seconds=0.1, path="p"))

    asyncio.run(end())
    assert ended == [1]
    office.desk.persist_last("again", lambda: ended.append(2))
    assert ended == [1, 2], "it is there already"


def test_without_checkpoints_the_end_waits_for_nobody(crew):
    ended = []
    Office(crew, persists=False).desk.persist_last("", lambda: ended.append(1))
    assert ended == [1]
