from random import Random

import pytest

from holdfast.sim.fuzz.fault_effects import FAULT_EFFECTS, LONG_PAUSE_MS
from holdfast.sim.fuzz.faults import (
    KINDS,
    PAUSES,
    DrawnFault,
    FaultMix,
    Faults,
    draw_faults,
    draw_pauses,
    draw_profile,
)
from holdfast.sim.fuzz.run import PATIENCE_MS
from support.fuzz_worlds import at_version, make, until

HARMLESS = ("suspended", "coordinator paused")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_happens_and_is_survived(kind):
    world = make(seed=2)
    faults = Faults(world, draw_faults(Random(5), FaultMix((kind,), 2, moments=("applied",)), 200))
    until(world, lambda: world.clock.now_ms >= 400 or world.coordinator.is_over)
    faults.end()
    if kind == "stop":
        until(world, lambda: world.coordinator.is_finished)
    else:
        newest = max(worker.position.version for worker in world.workers.values())
        at_version(world, newest + 1)


def test_after_their_end_nothing_goes_wrong():
    world = make()
    faults = Faults(world, draw_faults(Random(1), FaultMix(("worker", "node"), 20), 3_000))
    faults.end()
    at_version(world, 10)
    assert world.coverage["rounds"] == 0


def test_a_fault_can_wait_for_a_moment():
    world = make()
    Faults(world, (DrawnFault(kind="worker", seed=1, moment="applied", count=6),))
    until(world, lambda: world.coverage["updates"] == 6)
    seen_ms = world.clock.now_ms
    assert world.coverage["worker crashes"] == 0
    until(world, lambda: world.coverage["worker crashes"] == 1)
    assert world.clock.now_ms == seen_ms


@pytest.mark.parametrize("kind", PAUSES)
def test_a_pause_is_longer_than_a_job_is_waited_for(kind):
    assert min(LONG_PAUSE_MS) > max(PATIENCE_MS)
    world = make(patience_ms=max(PATIENCE_MS))
    faults = tuple(DrawnFault(kind=kind, seed=seed, at_ms=100) for seed in range(3))
    Faults(world, faults)
    until(world, lambda: world.clock.now_ms >= 100)
    last_ms = world.clock.now_ms + 4 * max(LONG_PAUSE_MS)
    newest = max(worker.position.version for worker in world.workers.values())
    until(world, lambda: world.clock.now_ms >= last_ms, 10 * max(LONG_PAUSE_MS))
    at_version(world, newest + 1)
    assert kind not in HARMLESS or world.coverage["rounds"] == 0


@pytest.mark.parametrize("only", [False, True])
def test_some_pauses_are_no_failure_of_a_worker(only):
    drawn = [draw_pauses(Random(seed), 300, only_coordinator=only) for seed in range(400)]
    kinds = {fault.kind for faults in drawn for fault in faults}
    assert kinds == (set(HARMLESS) if only else set(PAUSES))


def test_profiles_differ():
    profiles = [draw_profile(Random(seed)) for seed in range(200)]
    assert any(profile.only_coordinator for profile in profiles)
    assert {kind for profile in profiles for kind in profile.kinds} == set(KINDS)
    drawn_apart = {"superseded", "superseded unseen", *PAUSES}
    assert set(FAULT_EFFECTS) == {*KINDS, *drawn_apart}
