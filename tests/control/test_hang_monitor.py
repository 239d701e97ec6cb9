"""All workers train on two nodes, watched by a clock that is an argument."""

import msgspec
import pytest

from holdfast.control.facts import NodeConnected, ProgressPlace
from holdfast.control.hang_monitor import SHORTEST_SILENCE_MS, SILENT_BEATS, HangMonitor
from holdfast.control.journal_entries import Ordered, Started
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order
from holdfast.control.report import Member
from holdfast.control.roster import Roster
from holdfast.control.settings import ControlSettings
from holdfast.control.state import WorkerState
from holdfast.plan.build import regular_plan
from holdfast.plan.text import format_plan
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), replicas=2, micro_batches=2, devices_per_node=1)
SETTINGS = ControlSettings(plan=PLAN, heartbeat_ms=200, hang_floor_ms=2000, lost_after_ms=10_000)
SILENCE_MS = max(SHORTEST_SILENCE_MS, SILENT_BEATS * SETTINGS.heartbeat_ms)
STOPPED = ProgressPlace(3, 0, 0, SETTINGS.hang_floor_ms + 1, is_stopped=True)


class Scene:
    def __init__(self, settings=SETTINGS):
        self.journal, self.roster = JournalState(PLAN), Roster()
        self.hangs = HangMonitor(settings, self.journal, self.roster)
        self.lost = []
        for node in ("n0", "n1"):
            self.connect(node)

    def connect(self, node):
        self.roster.connect(NodeConnected(node=node, agent="a", places=()))

    def order(self, number):
        incarnations = dict.fromkeys(PLAN.workers, 1)
        plan = FullPlan(format_plan(PLAN))
        kind = "start" if number == 1 else "restore"
        self.journal.note(
            Ordered(Order(number=number, kind=kind, plan=plan, incarnations=incarnations))
        )

    def tell(self, worker, epoch, incarnation=1, **more):
        state = WorkerState(member=Member(worker, incarnation), epoch=epoch, **more)
        self.roster.told(state)
        self.hangs.told(state)

    def begin(self, now_ms=0):
        self.hangs.begin_if_all_train(now_ms)
        return self.hangs.epoch

    def look(self, now_ms):
        """Who hangs, by name; nodes that are lost are collected."""
        looked = self.hangs.look(now_ms)
        self.lost += looked.lost_nodes
        return {member.name: reason for member, reason in looked.hung.items()}


@pytest.fixture
def scene():
    """Every worker is in the first order."""
    scene = Scene()
    scene.order(1)
    for worker in PLAN.workers:
        scene.tell(worker, 1)
    for node in ("n0", "n1"):
        scene.hangs.received(node, 0)
    return scene


def test_no_worker_is_watched_before_the_first_order():
    assert Scene().begin() == 0


def test_who_trains_is_watched(scene):
    assert scene.hangs.epoch == 0
    assert scene.begin() == 1


def test_one_who_is_not_there_keeps_all_from_being_watched(scene):
    scene.roster.exited(Member("n1.g0", 1))
    assert scene.begin() == 0


def test_so_does_one_in_an_older_order(scene):
    scene.order(2)
    scene.tell("n0.g0", 2)
    assert scene.begin() == 0
    scene.tell("n1.g0", 2)
    assert scene.begin() == 2


def test_so_does_a_node_that_is_cut_off(scene):
    scene.roster.lose("n1", 0)
    assert scene.begin() == 0


def test_so_does_a_node_that_says_nothing(scene):
    scene.hangs.received("n0", SILENCE_MS)
    assert scene.begin(SILENCE_MS + 1) == 0
    scene.hangs.received("n1", SILENCE_MS + 2)
    assert scene.begin(SILENCE_MS + 3) == 1


@pytest.mark.parametrize(
    "more", [{"is_frozen": True}, {"broken": "a group broke"}, {"is_done": True}, {"epoch": 2}]
)
def test_who_stops_to_train_ends_the_watch(scene, more):
    scene.begin()
    scene.tell("n0.g0", **{"epoch": 1, **more})
    assert scene.hangs.epoch == 0
    assert scene.begin() == 0


def test_words_that_change_nothing_do_not(scene):
    scene.begin()
    scene.tell("n0.g0", 1, pending=2, version=7)
    assert scene.hangs.epoch == 1


def test_a_silent_node_ends_the_watch_and_is_hung_up_on_later(scene):
    scene.begin()
    scene.hangs.received("n0", SETTINGS.lost_after_ms)
    assert scene.look(SILENCE_MS) == {}
    assert scene.hangs.epoch == 1
    scene.look(SILENCE_MS + 1)
    assert (scene.hangs.epoch, scene.lost) == (0, [])
    scene.look(SETTINGS.lost_after_ms)
    assert scene.lost == []
    scene.look(SETTINGS.lost_after_ms + 1)
    assert scene.lost == ["n1"]


def test_a_node_that_never_spoke_is_not_silent(scene):
    scene.connect("n2")
    assert scene.begin(1) == 1
    scene.look(SILENCE_MS)
    assert (scene.hangs.epoch, scene.lost) == (1, [])


def test_a_worker_that_is_stopped_is_named_once(scene):
    scene.hangs.beat({"n1.g0": STOPPED}, 0, 0)
    (reason,) = [scene.look(0)["n1.g0"]]
    assert "stopped by a signal" in reason
    assert scene.look(0) == {}
    assert scene.hangs.stopped() == [Member("n1.g0", 1)]


def test_who_goes_on_has_moved(scene):
    scene.hangs.beat({"n1.g0": STOPPED}, 0, 0)
    assert scene.hangs.beat({"n1.g0": STOPPED}, 1, 1) == []
    running = msgspec.structs.replace(STOPPED, is_stopped=False, silent_ms=0)
    assert scene.hangs.beat({"n1.g0": running}, 2, 2) == ["n1.g0"]
    assert scene.hangs.stopped() == []


def test_who_is_gone_does_not_hang(scene):
    scene.hangs.beat({"n0.g0": STOPPED, "n1.g0": STOPPED}, 0, 0)
    scene.hangs.gone(Member("n0.g0", 1))
    scene.roster.exited(Member("n1.g0", 1))
    assert scene.look(0) == {}


def test_the_place_of_the_process_before_is_not_that_of_the_new_one(scene):
    """The end of the old one may be told after the new one has said hello."""
    scene.hangs.beat({"n1.g0": STOPPED}, 0, 0)
    scene.journal.note(Started(Member("n1.g0", 2)))
    scene.tell("n1.g0", 0, incarnation=2)
    assert scene.look(0) == {}
    assert scene.hangs.stopped() == []
    scene.hangs.beat({"n1.g0": STOPPED}, 1, 1)
    assert scene.look(1) == {}


def test_the_end_of_the_process_before_does_not_hide_the_place_of_the_new_one(scene):
    scene.journal.note(Started(Member("n1.g0", 2)))
    scene.tell("n1.g0", 0, incarnation=2)
    scene.hangs.beat({"n1.g0": msgspec.structs.replace(STOPPED, incarnation=2)}, 0, 0)
    scene.roster.exited(Member("n1.g0", 1))
    scene.hangs.gone(Member("n1.g0", 1))
    assert list(scene.look(0)) == ["n1.g0"]
    assert scene.hangs.stopped() == [Member("n1.g0", 2)]


def hang_after_steps_of(scene, epoch):
    """Three steps show their times; then no worker moves, and n1.g0 is where all wait for it."""
    scene.begin()
    for now_ms in (1000, 1500, 2000):
        scene.hangs.stepped(epoch, 0.5, now_ms)
    scene.hangs.beat(
        {"n0.g0": ProgressPlace(3, 1, 2000, 0), "n1.g0": ProgressPlace(3, 0, 2000, 0)}, 2000, 2000
    )
    found = {}
    for now_ms in range(2000, 60_000, SETTINGS.heartbeat_ms):
        for node in ("n0", "n1"):
            scene.hangs.received(node, now_ms)
        found |= scene.look(now_ms)
    return found


def test_steps_of_the_epoch_say_how_long_one_takes(scene):
    hung = hang_after_steps_of(scene, 1)
    assert list(hung) == ["n1.g0"]
    assert "stays in action 0 of step 3" in hung["n1.g0"]


def test_those_of_another_epoch_do_not(scene):
    assert hang_after_steps_of(scene, 2) == {}


def test_short_beats_still_leave_a_second():
    hasty = msgspec.structs.replace(SETTINGS, heartbeat_ms=1)
    scene = Scene(hasty)
    scene.hangs.received("n0", 0)
    scene.hangs.epoch = 1
    scene.look(SHORTEST_SILENCE_MS)
    assert scene.hangs.epoch == 1
    scene.look(SHORTEST_SILENCE_MS + 1)
    assert scene.hangs.epoch == 0
