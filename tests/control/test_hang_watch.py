"""A small world of workers that go through their actions, watched by the second."""

import pytest

from holdfast.control.facts import ProgressPlace
from holdfast.control.hang_watch import HangWatch, expected_actions
from holdfast.detect.progress import Expected
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from support.random_plans import make_units

PLAN = regular_plan(make_units(4), replicas=2, stages=2, micro_batches=4)
BEAT_MS, FLOOR_MS = 100, 2000


class World:
    """Every worker takes the same time per action; the watch looks on every beat."""

    def __init__(self):
        self.watch = HangWatch(BEAT_MS, FLOOR_MS, 6)
        self.now, self.step = 0, 0
        self.found = []
        self.actions = expected_actions(evaluate(PLAN, Profile()), 1000)
        self.watch.begin(PLAN, 0)

    def run_step(self, step_ms, until=1.0, stuck=(), **look):
        """All reach the part `until` of the step, but for those in `stuck`."""
        begin = self.now
        while self.now - begin < step_ms * until:
            self.beat((self.now - begin) / step_ms, stuck, **look)
        if until == 1.0:
            self.watch.stepped(step_ms / 1000, self.now)
            self.step += 1

    def beat(self, share, stuck=(), **look):
        places = {}
        for worker, acts in self.actions.items():
            if worker not in stuck:
                at = sum(act.end_ms <= share * 1000 for act in acts)
                places[worker] = ProgressPlace(self.step, min(at, len(acts) - 1), self.now, 0)
        places.update(
            {w: ProgressPlace(self.step, 0, self.now, **{"silent_ms": 0, **look}) for w in stuck}
        )
        self.watch.beat(places, self.now, self.now)
        self.found += self.watch.check(self.now)
        self.now += BEAT_MS


@pytest.fixture
def world():
    return World()


def test_every_tenth_step_five_times_slower_alarms_no_worker(world):
    for step in range(200):
        world.run_step(2500 if step % 10 == 9 else 500)
    assert world.found == []


def test_the_one_that_every_worker_waits_for_is_named(world):
    for _ in range(40):
        world.run_step(500)
    world.run_step(20_000, until=0.5, stuck=("n0.g2",))
    assert [hang.worker for hang in world.found] == ["n0.g2"]
    assert "stays in action 0 of step 40" in world.found[0].reason


def test_before_anything_was_seen_no_worker_is_judged(world):
    world.run_step(100_000, until=0.5, stuck=("n0.g2",))
    assert world.found == []


def test_a_new_plan_is_given_time(world):
    for _ in range(40):
        world.run_step(500)
    world.watch.suspend()
    world.now += 60_000
    world.watch.begin(PLAN, world.now)
    world.run_step(3000)
    assert world.found == []


def test_a_busy_worker_is_late_and_not_hung(world):
    """On an overloaded machine every worker is late; but no loop may go on for ever."""
    for _ in range(40):
        world.run_step(500)
    begin = world.now
    world.run_step(12_000, until=0.5, stuck=("n0.g2",), is_busy=True)
    assert world.found == []
    world.run_step(100_000, until=0.5, stuck=("n0.g2",), is_busy=True)
    assert [hang.worker for hang in world.found] == ["n0.g2"]
    assert world.now - begin > 12_000


def test_a_stopped_worker_is_told_by_the_kernel(world):
    """Also before anything was learned, and in the middle of a recovery."""
    world.watch.suspend()
    world.watch.beat({"n0.g1": ProgressPlace(3, 4, 0, FLOOR_MS, True)}, 0, 0)
    assert world.watch.check(0) == []
    world.watch.beat({"n0.g1": ProgressPlace(3, 4, 0, FLOOR_MS + 1, True)}, 0, 0)
    (hang,) = world.watch.check(0)
    assert (hang.worker, hang.reason) == ("n0.g1", "it was stopped by a signal 2001 ms ago")
    world.watch.gone("n0.g1")
    assert world.watch.check(0) == []


def test_what_to_expect_follows_the_timeline():
    found = expected_actions(evaluate(PLAN, Profile()), 1000)
    assert set(found) == set(PLAN.workers)
    for acts in found.values():
        assert [act.end_ms for act in acts] == sorted(act.end_ms for act in acts)
        assert acts[-1] == Expected(1002, 0)
    first, last = found["n0.g0"], found["n0.g1"]
    assert first[0].end_ms < last[1].end_ms, "the second stage waits for the first"


def in_the_agreement(world, **look):
    """All computations are done; one worker hangs before it agrees, the others wait for it."""
    acts = {worker: len(acts) - 2 for worker, acts in world.actions.items()}
    places = {w: ProgressPlace(world.step, at, world.now, 0) for w, at in acts.items()}
    hung = ProgressPlace(world.step, acts["n0.g2"], world.now, 0, **look)
    world.watch.beat({**places, "n0.g2": hung}, world.now, world.now)
    world.found += world.watch.check(world.now)
    world.now += BEAT_MS


def test_where_all_wait_for_all_none_is_named(world):
    for _ in range(40):
        world.run_step(500)
    for _ in range(60):
        in_the_agreement(world)
    assert [hang.worker for hang in world.found] == [""]
    assert "of step 40" in world.found[0].reason


def test_one_of_them_that_is_busy_is_named_in_the_end(world):
    for _ in range(40):
        world.run_step(500)
    for _ in range(400):
        in_the_agreement(world, is_busy=True)
    assert [hang.worker for hang in world.found] == ["n0.g2"]


def test_one_that_is_left_behind_in_the_agreement_is_named(world):
    for _ in range(40):
        world.run_step(500)
    acts = {worker: len(acts) - 2 for worker, acts in world.actions.items()}
    for _ in range(60):
        places = {w: ProgressPlace(world.step + 1, 0, world.now, 0) for w in acts}
        places["n0.g2"] = ProgressPlace(world.step, acts["n0.g2"], world.now, 0)
        world.watch.beat(places, world.now, world.now)
        world.found += world.watch.check(world.now)
        world.now += BEAT_MS
    assert [hang.worker for hang in world.found] == ["n0.g2"]


def test_a_verdict_on_a_worker_that_is_gone_is_dropped():
    watch = HangWatch(50, 1000, 8)
    assert watch._judge("n0.g0", "it makes no progress", 0) == []
