"""Everybody trains on two nodes, watched by a clock that is only said."""

import msgspec
import pytest

from holdfast.control.facts import WorkerHung
from holdfast.control.journal_entries import Ordered
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.plan.build import regular_plan
from holdfast.plan.text import format_plan
from holdfast.runtime.config.job_file import RecoverySection
from holdfast.runtime.coordinator.hang_monitor import SHORTEST_SILENCE_MS, SILENT_BEATS, HangMonitor
from holdfast.runtime.wire.messages import ProgressPlace
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), replicas=2, micro_batches=2, devices_per_node=1)
RECOVERY = RecoverySection(heartbeat_ms=200, hang_floor_ms=2000, lost_after_ms=10_000)
SILENCE_MS = max(SHORTEST_SILENCE_MS, SILENT_BEATS * RECOVERY.heartbeat_ms)
STOPPED = ProgressPlace(3, 0, 0, RECOVERY.hang_floor_ms + 1, is_stopped=True)


class Post:
    """Stands for the connections to the agents."""

    def __init__(self):
        self.nodes, self.hung_up = ["n0", "n1"], []

    def hang_up(self, node):
        self.hung_up.append(node)


class Scene:
    def __init__(self):
        self.past, self.states, self.post = JournalState(PLAN), {}, Post()
        self.vigil = HangMonitor(RECOVERY, self.past, self.states, self.post)

    def order(self, number):
        incarnations = dict.fromkeys(PLAN.workers, 1)
        plan = FullPlan(format_plan(PLAN))
        kind = "start" if number == 1 else "restore"
        self.past.note(
            Ordered(Order(number=number, kind=kind, plan=plan, incarnations=incarnations))
        )

    def tell(self, worker, epoch, **more):
        state = WorkerState(member=Member(worker, 1), epoch=epoch, **more)
        self.states[worker] = state
        self.vigil.told(state)

    def begin(self, now_ms=0):
        self.vigil.begin_if_all_train(now_ms)
        return self.vigil.epoch


@pytest.fixture
def scene():
    """Everybody is in the first order."""
    scene = Scene()
    scene.order(1)
    for worker in PLAN.workers:
        scene.tell(worker, 1)
    for node in scene.post.nodes:
        scene.vigil.heard(node, 0)
    return scene


def test_nobody_is_watched_before_the_first_order():
    assert Scene().begin() == 0


def test_who_trains_is_watched(scene):
    assert scene.vigil.epoch == 0
    assert scene.begin() == 1


def test_one_who_is_not_there_keeps_all_from_being_watched(scene):
    del scene.states["n1.g0"]
    assert scene.begin() == 0


def test_so_does_one_in_an_older_order(scene):
    scene.order(2)
    scene.tell("n0.g0", 2)
    assert scene.begin() == 0
    scene.tell("n1.g0", 2)
    assert scene.begin() == 2


def test_so_does_a_node_that_is_cut_off(scene):
    scene.post.nodes.remove("n1")
    assert scene.begin() == 0


def test_so_does_a_node_that_says_nothing(scene):
    scene.vigil.heard("n0", SILENCE_MS)
    assert scene.begin(SILENCE_MS + 1) == 0
    scene.vigil.heard("n1", SILENCE_MS + 2)
    assert scene.begin(SILENCE_MS + 3) == 1


@pytest.mark.parametrize(
    "more", [{"is_frozen": True}, {"broken": "a group broke"}, {"is_done": True}, {"epoch": 2}]
)
def test_who_stops_to_train_ends_the_watch(scene, more):
    scene.begin()
    scene.tell("n0.g0", **{"epoch": 1, **more})
    assert scene.vigil.epoch == 0
    assert scene.begin() == 0


def test_words_that_change_nothing_do_not(scene):
    scene.begin()
    scene.tell("n0.g0", 1, pending=2, version=7)
    assert scene.vigil.epoch == 1


def test_a_silent_node_ends_the_watch_and_is_hung_up_on_later(scene):
    scene.begin()
    scene.vigil.heard("n0", RECOVERY.lost_after_ms)
    assert scene.vigil.look(SILENCE_MS) == []
    assert scene.vigil.epoch == 1
    scene.vigil.look(SILENCE_MS + 1)
    assert (scene.vigil.epoch, scene.post.hung_up) == (0, [])
    scene.vigil.look(RECOVERY.lost_after_ms)
    assert scene.post.hung_up == []
    scene.vigil.look(RECOVERY.lost_after_ms + 1)
    assert scene.post.hung_up == ["n1"]


def test_a_node_that_never_spoke_is_not_silent(scene):
    scene.post.nodes.append("n2")
    assert scene.begin(1) == 1
    scene.vigil.look(SILENCE_MS)
    assert (scene.vigil.epoch, scene.post.hung_up) == (1, [])


def test_a_worker_that_is_stopped_is_named_once(scene):
    scene.vigil.beat({"n1.g0": STOPPED}, 0, 0)
    (hung,) = scene.vigil.look(0)
    assert isinstance(hung, WorkerHung)
    assert hung.member == Member("n1.g0", 1)
    assert "stopped by a signal" in hung.reason
    assert scene.vigil.look(0) == []


def test_who_is_gone_does_not_hang(scene):
    scene.vigil.beat({"n0.g0": STOPPED, "n1.g0": STOPPED}, 0, 0)
    scene.vigil.gone("n0.g0")
    del scene.states["n1.g0"]
    assert scene.vigil.look(0) == []


def hang_after_steps_of(scene, epoch):
    """Three steps show their times; then nobody moves, and n1.g0 is where all wait for it."""
    scene.begin()
    for now_ms in (1000, 1500, 2000):
        scene.vigil.stepped(epoch, 0.5, now_ms)
    scene.vigil.beat(
        {"n0.g0": ProgressPlace(3, 1, 2000, 0), "n1.g0": ProgressPlace(3, 0, 2000, 0)}, 2000, 2000
    )
    found = []
    for now_ms in range(2000, 60_000, RECOVERY.heartbeat_ms):
        for node in scene.post.nodes:
            scene.vigil.heard(node, now_ms)
        found += scene.vigil.look(now_ms)
    return found


def test_steps_of_the_epoch_say_how_long_one_takes(scene):
    (hung,) = hang_after_steps_of(scene, 1)
    assert hung.member.name == "n1.g0"
    assert "stays in action 0 of step 3" in hung.reason


def test_those_of_another_epoch_do_not(scene):
    assert hang_after_steps_of(scene, 2) == []


def test_short_beats_still_leave_a_second():
    hasty = msgspec.structs.replace(RECOVERY, heartbeat_ms=1)
    scene = Scene()
    scene.vigil = HangMonitor(hasty, scene.past, scene.states, scene.post)
    scene.vigil.heard("n0", 0)
    scene.vigil.epoch = 1
    scene.vigil.look(SHORTEST_SILENCE_MS)
    assert scene.vigil.epoch == 1
    scene.vigil.look(SHORTEST_SILENCE_MS + 1)
    assert scene.vigil.epoch == 0
