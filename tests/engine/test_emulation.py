"""What an emulated device and its links take, as numbers."""

import pytest

from holdfast.detect.facts import workload_of
from holdfast.engine.emulation import Emulation, LinkSpeeds
from holdfast.plan.profile import Link, Profile

PROFILE = Profile(
    within_node=Link(0.001, 1000.0),
    between_nodes=Link(0.01, 100.0),
    reduce=Link(0.002, 500.0),
    links={"n0>n2": Link(0.1, 10.0)},
)


def test_a_workers_own_speed_comes_before_that_of_its_node():
    emulation = Emulation(profile=PROFILE, speed={"n0": 0.5, "n0.g1": 0.25})
    found = {w: emulation.slowness(w) for w in ("n0.g0", "n0.g1", "n1.g0")}
    assert found == {"n0.g0": 2.0, "n0.g1": 4.0, "n1.g0": 1.0}


def test_work_grows_with_tokens_and_squares():
    emulation = Emulation(profile=PROFILE, attention=0.25, row_tokens=8, rows=2)
    full, packed = workload_of([8, 8]), workload_of([4, 4, 4, 4])
    assert emulation.work(full, has_attention=True) == 1.0
    assert emulation.work(packed, has_attention=True) == pytest.approx(0.75 + 0.25 / 2)
    assert emulation.work(packed, has_attention=False) == 1.0
    assert emulation.work(workload_of([4, 4]), has_attention=False) == 0.5


def test_a_link_is_as_fast_as_the_profile_its_speed_and_what_slowed_it_down_say():
    links = LinkSpeeds(Emulation(profile=PROFILE, link_speed={"n0>n1": 0.5}))
    assert links.message("n0.g0", "n0.g1") == Link(0.001, 1000.0)
    assert links.message("n0.g0", "n1.g0") == Link(0.02, 50.0)
    assert links.message("n1.g0", "n0.g0") == Link(0.01, 100.0)
    links.slow_down("n0.g0>n1.g0", 5.0)
    assert links.message("n0.g0", "n1.g0") == Link(0.1, 10.0)
    links.slow_down("n0.g0>n1.g0", 1.0)
    assert links.message("n0.g0", "n1.g0") == Link(0.02, 50.0)


def test_a_ring_goes_at_the_pace_of_its_slowest_link():
    links = LinkSpeeds(Emulation(profile=PROFILE))
    assert links.ring(("n1.g0", "n3.g0")) == Link(0.002, 500.0)
    assert links.ring(("n0.g0", "n2.g0")) == Link(0.1, 10.0)
    links.slow_down("n3>n1", 2.0)
    assert links.ring(("n1.g0", "n3.g0")) == Link(0.004, 250.0)
