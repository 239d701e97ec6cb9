"""What is whole is known, old memory goes, checkpoints are asked for when they are due."""

import pytest

from holdfast.control.effects import Explain, ToAllNodes, ToNode
from holdfast.control.facts import NodeConnected
from holdfast.control.journal_entries import Ordered
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order
from holdfast.control.roster import Roster
from holdfast.control.settings import SnapshotSettings
from holdfast.control.snapshots.coordination import SnapshotCoordination
from holdfast.control.snapshots.messages import (
    Copied,
    Copy,
    DropArenas,
    Persist,
    Persisted,
    PlaceCopies,
    SnapshotEvery,
)
from holdfast.control.worker_reports import StepReport
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.text import format_plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.interval import SEEN_VERSIONS
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.share import plan_digest
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), replicas=3, micro_batches=3, devices_per_node=1)
STAGES = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
V1, V2, V3 = Version(1, 1), Version(2, 1), Version(3, 1)


class Scene:
    def __init__(self, plan=PLAN, persists=True, **settings):
        self.plan, self.effects = plan, []
        self.journal, self.roster = JournalState(plan), Roster()
        self.order(1)
        options = SnapshotOptions(job="test")
        settings = SnapshotSettings(options=options, persists=persists, **settings)
        self.snapshots = SnapshotCoordination(settings, self.journal, self.roster)
        for node in dict.fromkeys(map(node_of, plan.workers)):
            self.roster.connect(NodeConnected(node=node, agent="a", places=()))

    def order(self, number, kind="start", step=0):
        incarnations = dict.fromkeys(self.plan.workers, 1)
        text = FullPlan(format_plan(self.plan))
        order = Order(number=number, kind=kind, plan=text, incarnations=incarnations)
        self.journal.note(Ordered(order, step))

    def hold(self, *versions, nodes=None):
        digest = plan_digest(self.plan)
        for worker in self.plan.workers:
            if nodes is None or node_of(worker) in nodes:
                arena = HeldArena(worker, digest, versions)
                self.effects += self.snapshots.update(node_of(worker), (arena,))
        self.effects += self.snapshots.look()
        return self

    def lose(self, node, left=()):
        self.roster.lose(node, 0)
        self.snapshots.lost(node, left)
        self.effects += self.snapshots.look()

    def sent(self, kind):
        messages = [e.message for e in self.effects if isinstance(e, ToNode | ToAllNodes)]
        return [message for message in messages if isinstance(message, kind)]


@pytest.fixture
def scene():
    return Scene().hold(V1, V2, V3)


def test_the_newest_whole_version_is_what_is_restored(scene):
    assert scene.snapshots.newest_loadable() == V3
    assert Scene().snapshots.newest_loadable() is None


def test_a_version_that_only_some_hold_is_not_whole():
    scene = Scene().hold(V1, V2)
    scene.hold(V1, V2, V3, nodes=["n0"])
    assert scene.snapshots.newest_loadable() == V2


def test_parity_counts_for_one_node(scene):
    scene.lose("n0")
    assert scene.snapshots.newest_loadable() == V3
    scene.lose("n1")
    assert scene.snapshots.newest_loadable() is None


def test_memory_that_outlived_its_agent_counts(scene):
    for node in ("n0", "n1"):
        scene.lose(node, (HeldArena(f"{node}.g0", plan_digest(PLAN), (V3,)),))
    assert scene.snapshots.newest_loadable() == V3


def test_versions_of_a_history_that_was_given_up_are_passed_over(scene):
    scene.order(4, "restore", step=2)
    assert scene.snapshots.newest_loadable() == V2


def test_a_checkpoint_is_as_good_when_memory_is_gone(scene):
    scene.snapshots.found_on_disk({V2: "step-2", Version(9, 7): "of another history"})
    assert scene.snapshots.newest_loadable() == V3
    for node in ("n0", "n1", "n2"):
        scene.lose(node)
    assert scene.snapshots.newest_loadable() == V2


def test_what_could_not_be_loaded_is_passed_over_until_a_node_comes(scene):
    (told,) = scene.snapshots.refuse(V3, "a chunk is damaged")
    assert told == Explain(
        "a chunk is damaged; the next older version is tried", {"version": str(V3)}
    )
    assert scene.snapshots.refuse(V3, "again") == []
    assert scene.snapshots.newest_loadable() == V2
    arena = HeldArena("n0.g0", plan_digest(PLAN), (V1, V2, V3))
    scene.snapshots.connected("n0", (arena,))
    assert scene.snapshots.newest_loadable() == V3, "what came back may mend it"


def test_old_memory_goes_once_a_version_is_whole_under_the_plan(scene):
    assert scene.sent(DropArenas) == [DropArenas(version=V3, plan=plan_digest(PLAN))]
    scene.hold(V1, V2, V3)
    assert len(scene.sent(DropArenas)) == 1


def test_nothing_is_dropped_before():
    assert Scene().hold(V1, nodes=["n0"]).effects == []


def test_versions_are_offered_and_demanded_where_redundancy_is_used_up(scene):
    assert scene.sent(Persist) == [Persist(version=V3)]
    scene.lose("n2")
    assert scene.sent(Persist)[-1] == Persist(version=V3, demand="redundancy is used up")


def test_the_first_connected_node_writes(scene):
    assert [e.node for e in scene.effects if isinstance(e, ToNode)] == ["n0"]


def test_without_checkpoints_nothing_is_offered():
    scene = Scene(persists=False).hold(V1)
    assert scene.sent(Persist) == scene.snapshots.persist_last("the job stops") == []


def test_where_copies_are_made_what_is_held_for_them_is_offered():
    scene = Scene(STAGES).hold(V1).hold(V1, V2)
    assert scene.sent(Copy) == [Copy(version=V1, plan=plan_digest(STAGES))]
    assert scene.sent(Persist) == [Persist(version=V1)]
    scene.snapshots.copied(Copied(version=V1, error="its process has ended"))
    scene.hold(V1, V2)
    assert scene.sent(Copy)[1:] == [Copy(version=V2, plan=plan_digest(STAGES))]
    assert scene.sent(Persist)[1:] == [Persist(version=V2)]


def test_a_node_that_had_no_room_for_copies_is_asked_again():
    """It kept silent: its worker had not asked for its arenas yet."""
    scene, digest = Scene(STAGES).hold(V1), plan_digest(STAGES)
    first, *_, last = STAGES.workers
    held = (HeldArena(first, digest, (V1,)), HeldArena(last, digest, ()))
    for _ in range(2):
        scene.effects += scene.snapshots.update(node_of(first), held)
        scene.effects += scene.snapshots.look()
        assert scene.sent(Copy) == 2 * [Copy(version=V1, plan=digest)]


def test_the_end_waits_for_the_last_checkpoint(scene):
    (asked,) = scene.snapshots.persist_last("the job stops")
    assert asked == ToNode("n0", Persist(version=V3, demand="the job stops"))
    written = Persisted(version=V3, reason="", seconds=0.1, path="p")
    assert not scene.snapshots.is_last(Persisted(version=V2, reason="", seconds=0.1, path="p"))
    assert scene.snapshots.is_last(written)
    scene.snapshots.written(written)
    assert scene.snapshots.persist_last("again") == [], "it is there already"


def test_a_write_that_failed_is_not_waited_for(scene):
    failed = Persisted(version=V3, reason="", seconds=0.1, path="p", error="no space")
    scene.snapshots.written(failed)
    assert scene.snapshots.is_last(failed)
    assert scene.snapshots.persist_last("again")


def test_waits_make_the_interval_grow():
    scene = Scene(max_cost=0.01).hold(V1)
    for _ in range(SEEN_VERSIONS):
        scene.snapshots.stepped(0.1)
        scene.effects += scene.snapshots.update("n0", (), {"n0.g0": CopyCost(8, 4, 0.0015)})
    first, last = scene.sent(SnapshotEvery)
    assert (first.every, last.every) == (1, 2)


def test_lost_nodes_make_checkpoints_more_frequent():
    scene = Scene(checkpoint_every_s=600.0).hold(V1)
    assert scene.sent(Persist)[-1].every_s == 600.0
    scene.effects += scene.snapshots.pace_checkpoints(1000)
    scene.snapshots.node_died()
    (told,) = scene.snapshots.pace_checkpoints(2000)
    assert "after 1 lost nodes" in told.text
    assert scene.hold(V2).sent(Persist)[-1].every_s == pytest.approx(300.0, rel=0.01)
    assert scene.snapshots.pace_checkpoints(3000) == []


def test_what_was_copied_is_told_with_the_next_step():
    scene = Scene().hold(V1)
    scene.snapshots.update("n0", (), {"n0.g0": CopyCost(8, 4, 0.5), "n0.g1": CopyCost(8, 8, 0.25)})
    scene.snapshots.update("n1", (), {"n1.g0": CopyCost(8, 0, 0.125)})
    assert scene.snapshots.stepped(0.1) == CopyCost(24, 12, 0.5)
    assert scene.snapshots.stepped(0.1) == CopyCost()


def test_workers_are_told_what_things_take():
    scene, report = Scene(), StepReport(4, 1, 0.1, 1.0, 1.0, 8, 1e-3, True)
    profile = Profile(unit={"u0": UnitCost(1.0, 1.0, 1.0)})
    assert scene.snapshots.place_copies(report, Profile()) == []
    told = scene.snapshots.place_copies(report, profile)
    assert told == [ToAllNodes(PlaceCopies(profile=profile))]


def test_without_snapshots_there_is_only_the_disk():
    journal, roster = JournalState(PLAN), Roster()
    snapshots = SnapshotCoordination(SnapshotSettings(), journal, roster)
    assert snapshots.update("n0", ()) == snapshots.look() == []
    report = StepReport(4, 1, 0.1, 1.0, 1.0, 8, 1e-3, True)
    assert snapshots.place_copies(report, Profile(unit={"u0": UnitCost(1.0, 1.0, 1.0)})) == []
    snapshots.lost("n0", ())
    assert snapshots.newest_loadable() is None
