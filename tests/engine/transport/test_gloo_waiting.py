"""No worker waits in gloo without a way out: operations that gloo loses are left behind."""

import threading

import pytest
import torch

from holdfast.engine.groups import GroupBroken
from holdfast.engine.transport.gloo import GlooConnection
from holdfast.engine.transport.gloo_waiting import outcome, wait_for_collective, wait_for_message
from support.live_groups import live_members

pytestmark = pytest.mark.process  # real connections

PAIR = ("n0.g0", "n0.g1")
HUGE = 1 << 26
"""Elements: more than a socket takes at once, or than arrives before a busy thread goes on."""


class Slow:
    """An operation that ends when it is told to, as gloo's do."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.reason = ""

    def wait(self, timeout=None):
        if not self.may_end.wait(timeout.total_seconds() if timeout else 10):
            raise RuntimeError("Operation timed out!")
        if self.reason:
            raise RuntimeError(self.reason)


class Group:
    def __init__(self) -> None:
        self.is_gone = threading.Event()

    def __del__(self) -> None:
        self.is_gone.set()


WAITS = pytest.mark.parametrize("wait", [wait_for_collective, wait_for_message])


@WAITS
@pytest.mark.parametrize("reason", ["", "connection reset"])
def test_what_became_of_it(wait, reason):
    work = Slow()
    work.reason = reason
    work.may_end.set()
    assert wait(work, None, lambda: False) == reason == outcome(work)


@WAITS
def test_a_group_that_is_not_given_up_is_waited_for(wait):
    work, looks = Slow(), []

    def look():
        looks.append(1)
        if len(looks) == 3:
            work.may_end.set()
        return False

    assert wait(work, None, look) == ""
    assert len(looks) == 3


@WAITS
def test_what_is_left_behind_keeps_its_group_until_it_ends(wait):
    work, group = Slow(), Group()
    is_gone = group.is_gone
    assert "is not waited for" in wait(work, group, lambda: True)
    del group
    assert not is_gone.is_set()
    work.may_end.set()
    assert is_gone.wait(10)


class _ClosedMeanwhile:
    """A process group that another thread closes while it is broken off."""

    def __init__(self) -> None:
        self.connection = GlooConnection(self, 0, 3)
        self.asked: list[int] = []

    def recv(self, tensors, peer, tag):
        self.asked.append(peer)
        self.connection.close()
        raise RuntimeError("Connection closed by peer")


def test_a_group_may_be_closed_while_it_is_broken_off():
    group = _ClosedMeanwhile()
    group.connection.break_off()
    assert group.asked == [1, 2]
    group.connection.break_off()  # it is closed by now
    assert group.asked == [1, 2]


STARTS = {
    "all-reduce": lambda group: group.all_reduce_async(torch.ones(4)),
    "gather": lambda group: group.gather_async(torch.empty(8), torch.ones(4)),
    "scatter": lambda group: group.scatter_async(torch.empty(4), torch.ones(8)),
}


@pytest.mark.parametrize("what", STARTS)
def test_a_collective_that_a_peer_never_begins(what):
    """A worker that stops waits a while for what is under way, and not for ever."""
    with live_members(*PAIR, timeout_ms=60_000) as members:
        groups = members.make("shard", PAIR)
        alone = groups[PAIR[0]]
        STARTS[what](alone)
        alone.stop("round 2", is_doomed=False)
        ending = threading.Thread(target=lambda: alone.let_end(0.0), daemon=True)
        ending.start()
        ending.join(10)
        assert not ending.is_alive()
        alone.look_at_rest()
        assert not alone.is_whole


def test_a_scatter_can_be_asked_whether_it_has_ended():
    with live_members(*PAIR) as members:
        groups = members.make("shard", PAIR)
        whole, parts = torch.arange(8.0), {name: torch.empty(4) for name in PAIR}
        pending = {name: groups[name].scatter_async(parts[name], whole) for name in PAIR}
        for one in pending.values():
            one.wait()
        assert all(one.is_done() for one in pending.values())
        assert parts[PAIR[0]].tolist() == [0.0, 2.0, 4.0, 6.0]
        assert parts[PAIR[1]].tolist() == [8.0, 10.0, 12.0, 14.0]
        assert whole.tolist() == list(range(8)), "what is given stays as it is"


@pytest.mark.parametrize("survivor", PAIR, ids=["the sender lives", "the receiver lives"])
def test_half_a_message(survivor):
    """The peer's connections close in the middle of it. The one left returns once it is woken,
    long before the deadline of the operation.

    A busy machine may deliver the whole message before they close: then it is tried again.
    """
    with live_members(*PAIR, timeout_ms=60_000) as members:
        errors = (_error_of_the_one_left(members, survivor, f"link {k}") for k in range(20))
        assert "round 2" in next(filter(None, errors), "")


def _error_of_the_one_left(members, survivor, name):
    groups = members.make(name, PAIR)
    receiving = groups[PAIR[1]].receive(torch.empty(HUGE), PAIR[0])
    sending = groups[PAIR[0]].send(torch.ones(HUGE), PAIR[1])
    pending = {PAIR[0]: sending, PAIR[1]: receiving}[survivor]
    (victim,) = set(PAIR) - {survivor}
    groups[victim].wake("gone")
    errors = []

    def wait():
        try:
            pending.wait()
        except GroupBroken as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    groups[survivor].wake("round 2")
    waiting.join(10)
    assert not waiting.is_alive()
    return errors[0] if errors else ""
