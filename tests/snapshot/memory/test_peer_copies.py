"""Copies on other nodes: as good as the original, or not made."""

import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.memory.arena import Version
from holdfast.snapshot.memory.peer_copies import CopyFailed, pull_copy
from holdfast.snapshot.memory.sources import NodeMemory, Unreadable
from support.random_plans import make_units
from support.snapshots import Cluster, fill_slot, load_all, random_state

PLAN = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
V1, V2 = Version(1, 0), Version(2, 0)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(PLAN, tmp_path)
    yield made
    made.close()


def save_own(cluster, version, state):
    for arena in cluster.arenas:
        slot = arena.begin(version)
        slot.seal(fill_slot(slot, state))


def owner_of(cluster, copy):
    own = [arena for arena in cluster.arenas if arena.layout.worker == copy.layout.worker]
    return NodeMemory(own[0].layout.node, own)


def test_a_lost_node_lives_on_in_its_copy(cluster):
    state = random_state(PLAN)
    save_own(cluster, V1, state)
    for copy in cluster.copies:
        pull_copy(copy, owner_of(cluster, copy), V1)
        assert copy.slot(V1) is not None
    for node in ("n0", "n1"):
        load_all(PLAN, cluster.catalog(V1, lost=[node]), state)


def test_a_damaged_original_is_not_copied(cluster):
    save_own(cluster, V1, random_state(PLAN, 1))
    copy = cluster.copies[0]
    pull_copy(copy, owner_of(cluster, copy), V1)
    save_own(cluster, V2, random_state(PLAN, 2))
    key = copy.layout.entries[-1].key
    owner = owner_of(cluster, copy)
    next(iter(owner.arenas.values())).slot(V2).tensor(key)[3] ^= 8
    with pytest.raises(CopyFailed, match=r"chunk 0 of .* arrived with"):
        pull_copy(copy, owner, V2)
    assert copy.in_progress() is None
    assert copy.newest().version == V1


def test_an_owner_that_goes_away_leaves_the_previous_copy(cluster):
    save_own(cluster, V1, random_state(PLAN))
    copy = cluster.copies[0]
    owner = owner_of(cluster, copy)

    def gone(*_):
        raise Unreadable("connection closed")

    owner.read = gone
    with pytest.raises(CopyFailed, match="connection closed"):
        pull_copy(copy, owner, V1)
    assert copy.newest() is None


def test_only_what_the_owner_has_is_copied(cluster):
    copy = cluster.copies[0]
    with pytest.raises(CopyFailed, match=r"n0 has no step 1 \(epoch 0\) of n0.g0"):
        pull_copy(copy, owner_of(cluster, copy), V1)


def test_another_plan_is_refused(cluster, tmp_path):
    other = regular_plan(make_units(2), stages=2, micro_batches=4, devices_per_node=1)
    (tmp_path / "other").mkdir()
    second = Cluster(other, tmp_path / "other")
    save_own(second, V1, random_state(other))
    with pytest.raises(CopyFailed, match="under plan"):
        pull_copy(cluster.copies[0], owner_of(second, cluster.copies[0]), V1)
    second.close()
