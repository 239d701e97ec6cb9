"""Whole or not follows from who holds what; parity counts."""

import pytest

from holdfast.job.kept import KeptBoard, all_slots
from holdfast.plan.build import regular_plan
from holdfast.snapshot.layout import Version
from support.kept_state import Crew
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


@pytest.fixture
def board(crew):
    board = KeptBoard(crew.options)
    for node, arenas in crew.held().items():
        board.hear(node, arenas)
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
    assert KeptBoard(crew.options).whole(PLANS) == []


def test_the_newest_of_two_lineages_comes_first(crew, board):
    found = [version for version, _, _ in board.whole(PLANS)]
    assert found == sorted(found, key=lambda version: version.age, reverse=True)
    assert found[0] == Version(3, 1)
