"""What is whole is told in time, old memory goes, checkpoints are asked for when they are due."""

import asyncio
from types import SimpleNamespace

import pytest

from holdfast.plan.build import regular_plan
from holdfast.runtime.coordinator.snapshot_coordination import SnapshotCoordination
from holdfast.runtime.coordinator.snapshot_interval import SnapshotIntervalControl
from holdfast.runtime.wire.snapshot_messages import (
    Copied,
    Copy,
    DropArenas,
    Persist,
    Persisted,
    SnapshotEvery,
)
from holdfast.snapshot.disk.job_writer import JobWriter
from holdfast.snapshot.interval import SEEN_VERSIONS, IntervalRule
from holdfast.snapshot.layout import Version
from holdfast.snapshot.snapshot_index import SnapshotIndex
from support.kept_state import JOB, Crew
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
    def __init__(self, crew, checkpoints=True, plan=PLAN):
        self.root = crew.folder / "checkpoints"
        self.post, self.facts, self.events, self.left = Post(), [], [], {}
        past = SimpleNamespace(plans={1: plan}, epoch_of_step=lambda step: 1)
        self.desk = SnapshotCoordination(
            SnapshotIndex(crew.options),
            past,
            self.post,
            take=self.facts.append,
            tell=self.events.extend,
            reach=lambda node: self.left.get(node, ()),
            checkpoints=self.root if checkpoints else None,
            pace=SnapshotIntervalControl(IntervalRule(1, 0.01), self.post, self.events.extend),
        )
        self.hear(crew)

    def hear(self, crew):
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


def test_where_copies_are_made_what_is_held_for_them_is_offered(tmp_path):
    plan = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
    crew = Crew(plan, tmp_path)
    crew.enter()
    states = {step: random_state(plan, seed=step) for step in range(1, 7)}
    crew.train({1: states[1], 2: states[2]})
    office = Office(crew, plan=plan)
    crew.train({3: states[3]})
    office.hear(crew)
    assert [copy.version for copy in office.post.take(Copy)] == [Version(1, 1)]
    assert [offer.version for offer in office.post.take(Persist)] == [Version(1, 1)]
    office.desk.copied(Copied(version=Version(1, 1), error="its process has ended"))
    office.hear(crew)
    assert [copy.version for copy in office.post.take(Copy)][1:] == [Version(2, 1)]
    assert [offer.version for offer in office.post.take(Persist)][1:] == [Version(2, 1)]
    crew.close()


def test_a_checkpoint_is_told(office):
    office.desk.written(Persisted(version=NEWEST, reason="due", seconds=0.1, path="p"))
    assert [(event.step, event.path) for event in office.events] == [(3, "p")]


def write(office, version):
    writer = JobWriter(JOB, office.root, office.root.parent)
    assert writer.hold(version)
    writer.write(version)
    writer.release()
    office.desk.written(Persisted(version=version, reason="due", seconds=0.1, path="p"))


def test_a_checkpoint_can_be_loaded_when_memory_is_gone(crew, office):
    write(office, Version(2, 1))
    for node in ("n0", "n1"):
        office.lose(node)
    assert office.versions() == [2]
    crew.folder.joinpath("checkpoints/step-2/.metadata").unlink()
    another = Office(crew)
    for node in ("n0", "n1"):
        another.lose(node)
    assert another.versions() == [], "a coordinator that was started again looks for itself"


def test_what_could_not_be_loaded_is_not_told_again(crew, office):
    office.desk.refuse(NEWEST, "a chunk is damaged")
    office.desk.refuse(NEWEST, "a chunk is damaged")
    assert office.versions() == [2, 1]
    (event,) = office.events
    assert event.reason == "a chunk is damaged; whatever is older is tried next"
    office.desk.connected("n0", crew.arenas["n0"].held())
    assert office.versions() == [3, 2, 1], "what came back may mend it"


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
    Office(crew, checkpoints=False).desk.persist_last("", lambda: ended.append(1))
    assert ended == [1]


def test_waits_make_the_interval_grow(crew):
    office = Office(crew)
    for _ in range(SEEN_VERSIONS):
        office.desk.stepped(0.1)
        office.desk.hear("n0", crew.held()["n0"], {"n0.g0": 0.0015})
    first, last = office.post.take(SnapshotEvery)
    assert (first.every, last.every) == (1, 2)
