"""One version after the other is copied; the one before is kept until all have the next."""

import pytest

from holdfast.control.snapshots.copy_rounds import CopyRounds
from holdfast.control.snapshots.messages import Copied, Copy
from holdfast.snapshot.layout import Version

V1, V2, V3, V4 = (Version(step, 1) for step in range(1, 5))


class Board:
    def __init__(self):
        self.there = []

    def copies(self, plan):
        return [("n1", "n0.g0")] if plan != "parity" else []

    def missing_copies(self, version, plan):
        return [] if version in self.there else self.copies(plan)


class Rounds(CopyRounds):
    """Notes what all nodes are told."""

    def __init__(self, board):
        super().__init__(board)
        self.sent = []

    def look(self, plan, newest, whole):
        copy = super().look(plan, newest, whole)
        self.sent += [] if copy is None else [copy]
        return self.held


@pytest.fixture
def board():
    return Board()


@pytest.fixture
def rounds(board):
    return Rounds(board)


def test_while_one_is_copied_no_other_is(rounds, board):
    assert rounds.look("p", V1, [V1]) == V1
    assert rounds.look("p", V2, [V2, V1]) == V1
    assert rounds.sent == [Copy(version=V1, plan="p")]
    board.there.append(V1)
    rounds.look("p", V3, [V3, V1])
    assert rounds.sent[1:] == [Copy(version=V3, plan="p", before=V1)]


def test_a_version_that_is_copied_is_not_copied_again(rounds, board):
    rounds.look("p", V1, [V1])
    board.there.append(V1)
    rounds.look("p", V1, [V1])
    assert len(rounds.sent) == 1


def test_what_was_overwritten_too_soon_is_given_up(rounds):
    rounds.look("p", V1, [V1])
    rounds.look("p", V3, [V3, V2])
    assert [copy.version for copy in rounds.sent] == [V1, V3]


def test_after_a_failure_the_next_one_is_tried(rounds):
    rounds.look("p", V1, [V1])
    rounds.copied(Copied(version=V1))
    rounds.copied(Copied(version=V4, error="of another round"))
    rounds.look("p", V2, [V2, V1])
    assert len(rounds.sent) == 1
    rounds.copied(Copied(version=V1, error="a chunk is damaged"))
    rounds.look("p", V2, [V2, V1])
    assert [copy.version for copy in rounds.sent] == [V1, V2]


def test_a_node_that_came_back_is_told_again(rounds):
    rounds.look("p", V1, [V1])
    rounds.begin_again()
    rounds.look("p", V1, [V1])
    assert len(rounds.sent) == 2


def test_a_copy_that_is_lost_is_made_again(rounds, board):
    rounds.look("p", V1, [V1])
    board.there.append(V1)
    rounds.look("p", V1, [V1])
    board.there.clear()
    rounds.look("p", V1, [V1])
    assert rounds.sent == 2 * [Copy(version=V1, plan="p")]


def test_another_plan_begins_anew(rounds, board):
    board.there.append(V1)
    rounds.look("p", V1, [V1])
    rounds.look("q", V2, [V2])
    assert rounds.sent[-1] == Copy(version=V2, plan="q")


def test_where_there_are_no_copies_nothing_is_said(rounds):
    assert rounds.look("parity", V1, [V1]) is None
    assert rounds.sent == []
