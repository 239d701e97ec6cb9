"""A worker's copies: whole versions only, in the arena of its plan, and never in training's way."""

from itertools import count

import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.arena_plan import SnapshotOptions, plan_arenas
from holdfast.snapshot.copying.movers import HostMover
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.placement import AGREE
from support.kept_state import Crew
from support.random_plans import make_units
from support.snapshots import random_state

PLAN = regular_plan(make_units(2), replicas=2, micro_batches=2, devices_per_node=1)
STATES = {step: random_state(PLAN, seed=step) for step in range(1, 8)}


@pytest.fixture
def crew(tmp_path):
    crew = Crew(PLAN, tmp_path)
    yield crew
    crew.close()


def first(crew):
    return crew.hands[PLAN.workers[0]]


def test_a_version_is_sealed_before_state_changes(crew):
    crew.enter()
    crew.train(STATES)
    assert first(crew).sealed_versions == [Version(step, 1) for step in range(1, 7)]
    crew.load(PLAN, PLAN.workers[1], Version(6, 1), STATES[6])


def test_arenas_of_a_plan_to_come_are_worked_out_before_it_is_entered(crew):
    first(crew).snapshots.prefetch(PLAN)
    before = plan_arenas.cache_info()
    first(crew).enter()
    after = plan_arenas.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)


def test_the_version_before_the_last_is_kept_for_those_behind(crew):
    crew.enter()
    crew.train(STATES)
    (arena,) = crew.arenas["n0"].held()
    assert [version.step for version in arena.versions] == [4, 5, 6]


def test_only_every_kth(tmp_path):
    crew = Crew(PLAN, tmp_path, every=3)
    crew.enter()
    crew.train(STATES)
    assert first(crew).sealed_versions == [Version(3, 1), Version(6, 1)]
    crew.close()


def test_a_longer_interval_from_now_on(crew):
    crew.enter()
    crew.train({1: STATES[1], 2: STATES[2]})
    first(crew).snapshots.set_every(4)
    crew.train({step: STATES[step] for step in range(3, 8)})
    assert first(crew).sealed_versions == [Version(1, 1), Version(2, 1), Version(4, 1)]


def test_what_a_version_cost_is_told_with_the_next(crew):
    crew.enter()
    crew.train(STATES)
    before, *others = first(crew).waits_s
    assert before == 0, "no worker waited before the first"
    assert all(seconds > 0 for seconds in others), "all was copied in the end"


def test_until_the_arena_is_there_nothing_is_copied(crew):
    first(crew).apply(1, 1, STATES[1])
    assert first(crew).sealed_versions == []


def test_a_broken_step_leaves_no_torn_version(crew):
    crew.enter()
    crew.train({1: STATES[1], 2: STATES[2]})
    first(crew).snapshots.broken_off()
    (arena,) = crew.arenas["n0"].held()
    assert [version.step for version in arena.versions] == [1]


def test_what_is_newer_than_a_restored_version_is_discarded(crew):
    crew.enter()
    crew.train(STATES)
    first(crew).enter(since=Version(5, 1))
    first(crew).apply(6, 2, STATES[6])
    (arena,) = crew.arenas["n0"].held()
    assert [version.step for version in arena.versions] == [4, 5]


def test_an_error_ends_the_snapshots_and_not_the_training(crew, monkeypatch, caplog):
    crew.enter()
    monkeypatch.setattr(Arena, "begin", lambda *_: (_ for _ in ()).throw(OSError("no memory")))
    crew.train(STATES)
    assert "no memory" in caplog.text
    assert first(crew).sealed_versions == []


def test_the_last_version_is_waited_for_at_the_end(crew, monkeypatch, caplog):
    """From a device a version is copied some time before it is sealed."""
    looks = count()
    monkeypatch.setattr(HostMover, "is_complete", lambda _, job: job.is_copied and next(looks) > 9)
    crew.enter()
    crew.train({1: STATES[1]})
    first(crew).snapshots.flush()
    assert first(crew).sealed_versions == [Version(1, 1)]
    assert caplog.text == ""


def test_copies_run_only_in_waits(crew):
    crew.enter()
    hand = first(crew)
    hand.apply(1, 1, STATES[1])
    copier = hand.snapshots._copier
    opened = [copier._is_open]
    hand.snapshots.waiting(AGREE)
    opened.append(copier._is_open)
    hand.snapshots.going_on()
    opened.append(copier._is_open)
    assert opened == [False, True, False]


def test_what_a_device_waited_is_told_too(crew, monkeypatch):
    monkeypatch.setattr(HostMover, "held_s", lambda _: 5.0)
    crew.enter()
    crew.train(STATES)
    assert all(seconds > 5 for seconds in first(crew).waits_s[1:])


def test_nothing_fits(tmp_path):
    crew = Crew(PLAN, tmp_path, memory_limit_bytes=1)
    crew.enter()
    crew.train(STATES)
    assert crew.held() == {"n0": (), "n1": ()}
    assert crew.options == SnapshotOptions(job="test", memory_limit_bytes=1)
    crew.close()
