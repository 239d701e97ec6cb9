"""A worker's copies: whole versions only, in the arena of its plan, and never in training's way."""

from itertools import count

import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.arena_plan import SnapshotOptions, plan_arenas
from holdfast.snapshot.copying.movers import HostMover
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.placement import AGREE
from support.kept_state import KeptWorkers
from support.random_plans import make_units
from support.snapshots import random_state

PLAN = regular_plan(make_units(2), replicas=2, micro_batches=2, devices_per_node=1)
STATES = {step: random_state(PLAN, seed=step) for step in range(1, 8)}


@pytest.fixture
def kept(tmp_path):
    kept = KeptWorkers(PLAN, tmp_path)
    yield kept
    kept.close()


def first(kept):
    return kept.by_name[PLAN.workers[0]]


def test_a_version_is_sealed_before_state_changes(kept):
    kept.enter()
    kept.train(STATES)
    assert first(kept).sealed_versions == [Version(step, 1) for step in range(1, 7)]
    kept.load(PLAN, PLAN.workers[1], Version(6, 1), STATES[6])


def test_arenas_of_a_plan_to_come_are_worked_out_before_it_is_entered(kept):
    first(kept).snapshots.prefetch(PLAN)
    before = plan_arenas.cache_info()
    first(kept).enter()
    after = plan_arenas.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)


def test_the_version_before_the_last_is_kept_for_those_behind(kept):
    kept.enter()
    kept.train(STATES)
    (arena,) = kept.arenas["n0"].held()
    assert [version.step for version in arena.versions] == [4, 5, 6]


def test_only_every_kth(tmp_path):
    kept = KeptWorkers(PLAN, tmp_path, every=3)
    kept.enter()
    kept.train(STATES)
    assert first(kept).sealed_versions == [Version(3, 1), Version(6, 1)]
    kept.close()


def test_a_longer_interval_from_now_on(kept):
    kept.enter()
    kept.train({1: STATES[1], 2: STATES[2]})
    first(kept).snapshots.set_every(4)
    kept.train({step: STATES[step] for step in range(3, 8)})
    assert first(kept).sealed_versions == [Version(1, 1), Version(2, 1), Version(4, 1)]


def test_what_a_version_cost_is_told_with_the_next(kept):
    kept.enter()
    kept.train(STATES)
    before, *others = first(kept).waits_s
    assert before == 0, "no worker waited before the first"
    assert all(seconds > 0 for seconds in others), "all was copied in the end"


def test_until_the_arena_is_there_nothing_is_copied(kept):
    first(kept).apply(1, 1, STATES[1])
    assert first(kept).sealed_versions == []


def test_a_broken_step_leaves_no_torn_version(kept):
    kept.enter()
    kept.train({1: STATES[1], 2: STATES[2]})
    first(kept).snapshots.broken_off()
    (arena,) = kept.arenas["n0"].held()
    assert [version.step for version in arena.versions] == [1]


def test_what_is_newer_than_a_restored_version_is_discarded(kept):
    kept.enter()
    kept.train(STATES)
    first(kept).enter(since=Version(5, 1))
    first(kept).apply(6, 2, STATES[6])
    (arena,) = kept.arenas["n0"].held()
    assert [version.step for version in arena.versions] == [4, 5]


def test_an_error_ends_the_snapshots_and_not_the_training(kept, monkeypatch, caplog):
    kept.enter()
    monkeypatch.setattr(Arena, "begin", lambda *_: (_ for _ in ()).throw(OSError("no memory")))
    kept.train(STATES)
    assert "no memory" in caplog.text
    assert first(kept).sealed_versions == []


def test_the_last_version_is_waited_for_at_the_end(kept, monkeypatch, caplog):
    """From a device a version is copied some time before it is sealed."""
    looks = count()
    monkeypatch.setattr(HostMover, "is_complete", lambda _, job: job.is_copied and next(looks) > 9)
    kept.enter()
    kept.train({1: STATES[1]})
    first(kept).snapshots.flush()
    assert first(kept).sealed_versions == [Version(1, 1)]
    assert caplog.text == ""


def test_copies_run_only_in_waits(kept):
    kept.enter()
    one = first(kept)
    one.apply(1, 1, STATES[1])
    copier = one.snapshots._copier
    opened = [copier._is_open]
    one.snapshots.waiting(AGREE)
    opened.append(copier._is_open)
    one.snapshots.going_on()
    opened.append(copier._is_open)
    assert opened == [False, True, False]


def test_what_a_device_waited_is_told_too(kept, monkeypatch):
    monkeypatch.setattr(HostMover, "held_s", lambda _: 5.0)
    kept.enter()
    kept.train(STATES)
    assert all(seconds > 5 for seconds in first(kept).waits_s[1:])


def test_nothing_fits(tmp_path):
    kept = KeptWorkers(PLAN, tmp_path, memory_limit_bytes=1)
    kept.enter()
    kept.train(STATES)
    assert kept.held() == {"n0": (), "n1": ()}
    assert kept.options == SnapshotOptions(job="test", memory_limit_bytes=1)
    kept.close()
