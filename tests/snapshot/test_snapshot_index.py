"""Whole or not follows from who holds what; parity counts."""

import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.layout import Version
from holdfast.snapshot.loadable import find_loadable
from holdfast.snapshot.memory.peer_copies import CopyKeeper
from holdfast.snapshot.snapshot_index import SnapshotIndex
from support.kept_state import JOB, KeptWorkers
from support.random_plans import make_units
from support.snapshots import random_state

PLAN = regular_plan(make_units(2), replicas=3, micro_batches=3, devices_per_node=1)
STATES = {step: random_state(PLAN, seed=step) for step in range(1, 5)}
PLANS = {1: PLAN}


@pytest.fixture
def kept(tmp_path):
    kept = KeptWorkers(PLAN, tmp_path)
    kept.enter()
    kept.train(STATES)
    yield kept
    kept.close()


def tell(index, kept):
    for node, arenas in kept.held().items():
        index.update(node, arenas)


@pytest.fixture
def index(kept):
    index = SnapshotIndex(kept.options)
    tell(index, kept)
    return index


def loadable(index, plans=PLANS):
    return find_loadable(index.statuses(plans), {})


def versions(index):
    return [(one.version.step, one.version.agreed_in) for one in loadable(index)]


def test_what_every_worker_has_is_whole(index):
    assert versions(index) == [(3, 1), (2, 1), (1, 1)]
    assert not any(one.is_degraded for one in loadable(index))


def test_parity_stands_in_for_one_node(index):
    index.remove("n1")
    assert versions(index) == [(3, 1), (2, 1), (1, 1)]
    assert all(one.is_degraded for one in loadable(index))
    index.remove("n2")
    assert versions(index) == []
    assert index.nodes == ["n0"]


def test_a_version_that_one_node_does_not_have_yet(kept, index):
    kept.by_name["n0.g0"].snapshots.applying()
    index.update("n0", kept.arenas["n0"].held())
    assert versions(index)[0] == (3, 1)


def test_a_version_of_an_unknown_plan_is_nothing(kept, index):
    assert SnapshotIndex(kept.options).statuses(PLANS) == []
    fresh = SnapshotIndex(kept.options)
    tell(fresh, kept)
    assert fresh.statuses({}) == []


def test_the_newest_of_two_histories_comes_first(kept, index):
    found = [one.version for one in loadable(index)]
    assert found == sorted(found, key=lambda version: version.age, reverse=True)
    assert found[0] == Version(3, 1)


def test_copies_count_once_they_are_made(tmp_path):
    plan = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
    kept = KeptWorkers(plan, tmp_path)
    kept.enter()
    kept.train({step: random_state(plan, seed=step) for step in range(1, 5)})
    index = SnapshotIndex(kept.options)
    tell(index, kept)
    newest = loadable(index, {1: plan})[0]
    version, digest = newest.version, newest.plan
    assert (
        index.missing_copies(version, digest)
        == index.copies(digest)
        == [("n1", "n0.g0"), ("n0", "n1.g0")]
    )
    CopyKeeper(JOB, "n1", tmp_path).copy(version, digest)
    tell(index, kept)
    assert index.missing_copies(version, digest) == [("n0", "n1.g0")]
    index.remove("n0")
    assert [one.version for one in loadable(index, {1: plan})] == [version]
    kept.close()
