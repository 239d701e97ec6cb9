"""Whole or not follows from who holds what; parity counts."""

import pytest

from holdfast.plan.build import regular_plan
from holdfast.runtime.coordinator.snapshot_index import SnapshotIndex, all_slots
from holdfast.snapshot.layout import Version
from holdfast.snapshot.memory.peer_copies import CopyKeeper
from support.kept_state import JOB, Crew
from support.random_plans import make_units
from support.snapshots import random_state

PLAN = regular_plan(make_units(2), replicas=3, micro_batches=3, devices_per_node=1)
STATES = {step: random_state(PLAN, seed=step) for step in range(1, 5)}
PLANS = {1: PLAN}


@pytest.fixture
def crew(tmp_path):
    crew = Crew(PLAN, tmp_path)
    crew.enter()
    crew.train(STATES)
    yield crew
    crew.close()


def tell(board, crew):
    for node, arenas in crew.held().items():
        board.hear(node, arenas)


@pytest.fixture
def board(crew):
    board = SnapshotIndex(crew.options)
    tell(board, crew)
    return board


def versions(board):
    return [(kept.version, kept.epoch) for kept in board.kept(PLANS)]


def test_what_everybody_has_is_whole(board):
    assert versions(board) == [(3, 1), (2, 1), (1, 1)]
    assert {kept.slots for kept in board.kept(PLANS)} == {all_slots(PLAN)}
    assert not any(standing.is_degraded for _, _, standing in board.whole(PLANS))


def test_parity_stands_in_for_one_node(board):
    board.lose("n1")
    assert versions(board) == [(3, 1), (2, 1), (1, 1)]
    assert all(standing.is_degraded for _, _, standing in board.whole(PLANS))
    board.lose("n2")
    assert versions(board) == []
    assert board.nodes == ["n0"]


def test_a_version_that_one_node_does_not_have_yet(crew, board):
    crew.hands["n0.g0"].snapshots.applying()
    board.hear("n0", crew.arenas["n0"].held())
    assert versions(board)[0] == (3, 1)


def test_a_version_of_an_unknown_plan_is_nothing(crew, board):
    assert board.kept({}) == ()
    assert SnapshotIndex(crew.options).whole(PLANS) == []


def test_the_newest_of_two_lineages_comes_first(crew, board):
    found = [version for version, _, _ in board.whole(PLANS)]
    assert found == sorted(found, key=lambda version: version.age, reverse=True)
    assert found[0] == Version(3, 1)


def test_copies_count_once_they_are_made(tmp_path):
    plan = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
    crew = Crew(plan, tmp_path)
    crew.enter()
    crew.train({step: random_state(plan, seed=step) for step in range(1, 5)})
    board = SnapshotIndex(crew.options)
    tell(board, crew)
    ((version, digest, _), *_) = board.whole({1: plan})
    assert (
        board.lacking(version, digest) == board.copies(digest) == [("n1", "n0.g0"), ("n0", "n1.g0")]
    )
    CopyKeeper(JOB, "n1", tmp_path).copy(version, digest)
    tell(board, crew)
    assert board.lacking(version, digest) == [("n0", "n1.g0")]
    board.lose("n0")
    assert [kept.version for kept in board.kept({1: plan})] == [version.step]
    crew.close()


def test_what_is_on_disk_can_be_loaded(board):
    kept = board.kept(PLANS, [Version(3, 1), Version(0, 1), Version(5, 7)])
    assert [part.version for part in kept] == [3, 2, 1, 0], "each once, of known epochs"
