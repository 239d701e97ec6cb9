"""A worker stops because another one leaves: what of its groups lives on."""

import time

import pytest
import torch

from holdfast.engine.groups import GroupBroken
from support.live_groups import live_members

A, B, C = THREE = ("n0.g0", "n0.g1", "n0.g2")


@pytest.fixture
def members():
    with live_members(*THREE) as made:
        yield made


def stop(communicator):
    communicator.stop(f"{C} is out", [C])


def settle(communicator):
    communicator.settle(f"{C} is out")
    return communicator.levels()


def test_a_group_without_the_one_that_leaves_lives_on(members):
    groups, doomed = members.make("shard", (A, B)), members.make("reduce", THREE)
    members.together(lambda c: groups[c.worker].all_reduce(torch.ones(2)), A, B)
    members.together(stop, A, B)
    # What goes on within it is done to its end.
    out = members.together(lambda c: _gathered(groups[c.worker]), A, B)
    assert out[A].tolist() == out[B].tolist() == [1.0, 1.0]
    with pytest.raises(GroupBroken, match="is out"):
        doomed[A].all_reduce(torch.ones(1))
    told = members.together(settle, A, B)
    assert told[A] == told[B]
    assert list(told[A]) == [groups[A].name]
    with pytest.raises(GroupBroken, match="is out"):
        groups[A].all_reduce(torch.ones(1))

    fresh = {name: members.communicators[name].renew(list(told[A])) for name in (A, B)}
    assert all(communicator.num_live == 1 for communicator in fresh.values())
    members.communicators.update(fresh)
    assert fresh[A].living == {("shard", (A, B)): groups[A]}
    out = members.together(lambda c: _gathered(groups[c.worker]), A, B)
    assert out[A].tolist() == [1.0, 1.0]


def _gathered(group):
    out = torch.zeros(2)
    group.gather_async(out, torch.ones(1)).wait()
    return out


def test_nothing_is_begun_any_more_that_sums_up_the_step(members):
    """Not even among those who stay: the others may have stopped before it."""
    groups = members.make("reduce", (A, B))
    stop(members.communicators[A])
    pending = groups[A].all_reduce_async(torch.ones(1))
    assert not pending.is_done()
    with pytest.raises(GroupBroken, match="this worker stops"):
        pending.wait()
    stop(members.communicators[B])
    told = members.together(settle, A, B)
    assert told[A] == told[B] == {groups[A].name: told[A][groups[A].name]}


def test_a_group_in_which_only_one_has_gone_on_does_not(members):
    groups = members.make("shard", (A, B))
    pending = groups[A].all_reduce_async(torch.ones(1))
    members.together(stop, A, B)
    told = members.together(settle, A, B)
    assert told[A] == {}, "what it had begun was broken off"
    with pytest.raises(GroupBroken, match="is out"):
        pending.wait()


def test_messages_are_counted_by_their_sender(members):
    groups = members.make("link", (A, B))
    members.together(lambda c: _passed(groups[c.worker]), A, B)
    members.together(stop, A, B)
    told = members.together(settle, A, B)
    assert told[A] == told[B]
    assert [level.counts for level in told[A].values()] == [(0, 1, 0)]


def _passed(group):
    tensor = torch.ones(1)
    pending = group.send(tensor, B) if group.rank == 0 else group.receive(tensor, A)
    pending.wait()


def test_whoever_waits_for_one_that_has_stopped_does_not_wait_long(members):
    groups = members.make("tensor", (A, B))
    stop(members.communicators[A])
    began = time.monotonic()
    with pytest.raises(GroupBroken):
        groups[A].all_reduce(torch.ones(1))
    assert time.monotonic() - began < 5
    assert settle(members.communicators[A]) == {}


def test_a_worker_that_does_not_stop_by_itself_is_woken(members, monkeypatch):
    monkeypatch.setattr("holdfast.engine.communicator._STOPPING_S", 0.05)
    communicator = members.communicators[A]
    members.make("tensor", (A, B))
    stop(communicator)
    while not communicator.woken:
        time.sleep(0.01)
    assert settle(communicator) == {}


def test_without_a_word_on_who_leaves_all_groups_are_given_up(members):
    members.make("shard", (A, B))
    assert settle(members.communicators[A]) == {}
    with pytest.raises(GroupBroken, match="is out"):
        members.communicators[A].make("shard", (A,), 1)
