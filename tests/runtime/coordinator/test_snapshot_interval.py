"""What snapshots cost is heard, and everybody is told how often they are taken."""

import pytest

from holdfast.runtime.coordinator.snapshot_interval import SnapshotIntervalControl
from holdfast.runtime.wire.snapshot_messages import SnapshotEvery
from holdfast.snapshot.interval import SEEN_VERSIONS, IntervalRule


class Post:
    def __init__(self):
        self.sent = []

    def to_all(self, message):
        assert isinstance(message, SnapshotEvery)
        self.sent.append(message.every)


@pytest.fixture
def post():
    return Post()


@pytest.fixture
def told():
    return []


@pytest.fixture
def pace(post, told):
    pace = SnapshotIntervalControl(IntervalRule(1, 0.01), post, told.extend)
    for _ in range(10):
        pace.stepped(0.1)
    return pace


def test_what_is_cheap_is_not_talked_about(pace, post, told):
    for _ in range(2 * SEEN_VERSIONS):
        pace.waited({"n0.g0": 0.0001, "n0.g1": 0.0})
    assert (post.sent, told) == ([], [])


def test_what_is_dear_is_done_more_seldom_and_the_journal_says_why(pace, post, told):
    for _ in range(SEEN_VERSIONS):
        pace.waited({"n0.g0": 0.0001, "n0.g1": 0.0035})
    assert post.sent == [4]
    (decided,) = told
    assert decided.details == {"every": "4"}
    assert decided.reason.startswith("n0.g1 waits 3.5 ms")


def test_another_plan_begins_with_what_was_chosen_and_looks_again(pace, post, told):
    for _ in range(SEEN_VERSIONS):
        pace.waited({"n0.g0": 0.0015})
    pace.begin_again()
    assert post.sent == [2, 2]
    pace.waited({"n0.g0": 1.0})
    assert len(told) == 1, "nothing is known of the new one yet"
