from random import Random

import pytest

from holdfast.sim.fuzz.faults import KINDS, FaultMix, Faults, draw_profile
from support.fuzz_worlds import at_version, make, until


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_strikes_and_is_survived(kind):
    world = make(seed=3)
    faults = Faults(world, FaultMix((kind,), 2, moments=("applied",)), 200)
    until(world, lambda: world.clock.now_ms >= 400)
    faults.make_peace()
    at_version(world, max(worker.position.version for worker in world.workers.values()) + 1)


def test_in_peace_nothing_goes_wrong():
    world = make()
    faults = Faults(world, FaultMix(("worker", "node"), 20), 3_000)
    faults.make_peace()
    at_version(world, 10)
    assert world.coverage["rounds"] == 0


def test_profiles_differ():
    profiles = [draw_profile(Random(seed)) for seed in range(200)]
    assert any(profile.only_coordinator for profile in profiles)
    assert {kind for profile in profiles for kind in profile.kinds} == set(KINDS)
