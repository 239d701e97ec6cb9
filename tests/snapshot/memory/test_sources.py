"""The memory of a node, as others see it."""

import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.manifest import ArenaPlace
from holdfast.snapshot.memory.arena import Version
from holdfast.snapshot.memory.sources import NodeMemory, Unreadable
from holdfast.snapshot.share import plan_digest
from support.random_plans import make_units
from support.snapshots import Cluster, random_state

PLAN = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
PLAN_DIGEST = plan_digest(PLAN)
V1, V2 = Version(1, 0), Version(2, 0)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(PLAN, tmp_path)
    yield made
    made.close()


def test_everything_committed_is_listed(cluster):
    memory = cluster.memories()[0]
    assert memory.manifests() == []
    cluster.save(V1, random_state(PLAN))
    cluster.save(V2, random_state(PLAN))
    cluster.arenas[0].begin(Version(3, 0))
    found = {(m.worker, m.version.step) for m in memory.manifests()}
    # n0 keeps its own worker's state and a copy of the other's; the oldest of its own is going.
    assert found == {("n0.g0", 2), ("n1.g0", 1), ("n1.g0", 2)}
    assert all(m.node == "n0" for m in memory.manifests())


def test_bytes_are_given_as_they_are(cluster):
    cluster.save(V1, random_state(PLAN))
    memory = cluster.memories()[0]
    layout = cluster.arenas[0].layout
    entry = layout.entries[0]
    data = memory.read(ArenaPlace("n0.g0", V1, PLAN_DIGEST), entry.key, 4, 12)
    assert data == cluster.arenas[0].newest().bytes(entry.key)[4:12]


def test_what_is_not_there_is_said(cluster):
    cluster.save(V1, random_state(PLAN))
    memory = cluster.memories()[0]
    key = cluster.arenas[0].layout.entries[0].key
    with pytest.raises(Unreadable, match=r"n0 has no step 2 \(epoch 0\) of n0.g0 any more"):
        memory.read(ArenaPlace("n0.g0", V2, PLAN_DIGEST), key, 0, 4)
    with pytest.raises(Unreadable, match=r"of n9\.g0"):
        memory.read(ArenaPlace("n9.g0", V1, PLAN_DIGEST), key, 0, 4)
    with pytest.raises(Unreadable, match=r"keeps no 'x' for n0\.g0"):
        memory.read(ArenaPlace("n0.g0", V1, PLAN_DIGEST), "x", 0, 4)


def test_a_version_that_was_overwritten_is_not_confirmed(cluster):
    cluster.save(V1, random_state(PLAN))
    memory = NodeMemory("n0", cluster.arenas[:1])
    memory.confirm(ArenaPlace("n0.g0", V1, PLAN_DIGEST))
    cluster.arenas[0].roll_back(Version(0, 0))
    with pytest.raises(Unreadable, match="any more"):
        memory.confirm(ArenaPlace("n0.g0", V1, PLAN_DIGEST))


def test_two_plans_of_one_worker_are_told_apart(cluster, tmp_path):
    """While a plan takes over, both versions are there."""
    other = regular_plan(make_units(2), replicas=2, micro_batches=2, devices_per_node=1)
    (tmp_path / "other").mkdir()
    second = Cluster(other, tmp_path / "other")
    cluster.save(V1, random_state(PLAN, 1))
    second.save(V2, random_state(other, 2))
    memory = NodeMemory("n0", [cluster.arenas[0], second.arenas[0]])
    assert {m.version for m in memory.manifests()} == {V1, V2}
    with pytest.raises(Unreadable, match="any more"):
        memory.confirm(ArenaPlace("n0.g0", V2, PLAN_DIGEST))
    memory.confirm(ArenaPlace("n0.g0", V2, plan_digest(other)))
    second.close()
