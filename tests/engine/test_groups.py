"""Groups: values with a deadline, that can be woken, and leave nothing behind."""

import threading
import time
from itertools import combinations

import pytest
import torch

from holdfast.engine.communicator import Communicator
from holdfast.engine.groups import (
    GroupBroken,
    LiveGroup,
    first_line,
    group_errors_unwrapped,
    short_list,
)
from holdfast.errors import HoldfastError, InternalError
from support.cluster import Died
from support.group_work import reduce_until_death
from support.live_groups import count_resources, live_members, run_together
from support.sample import some

pytestmark = pytest.mark.process  # real connections

PAIR = ("n0.g0", "n0.g1")
THREE = (*PAIR, "n0.g2")
HUGE = 1 << 24
"""Elements: more than a socket takes without a receiver."""


@pytest.mark.parametrize(("op", "expected"), [("sum", 6.0), ("max", 3.0), ("min", 1.0)])
def test_all_reduce(op, expected):
    def work(communicator):
        group = communicator.make("reduce", THREE, 0)
        tensor = torch.full((5,), float(group.rank + 1))
        group.all_reduce(tensor, op)
        return tensor.tolist()

    with live_members(*THREE) as members:
        assert members.together(work) == dict.fromkeys(THREE, [expected] * 5)


def test_gather_and_scatter():
    """Every member's part one behind the other; of the sum, every member its part."""

    def work(communicator):
        group = communicator.make("shard", THREE, 0)
        own = torch.arange(2.0) + 10 * group.rank
        gathered, part = torch.empty(6), torch.empty(2)
        group.gather_async(gathered, own).wait()
        group.scatter_async(part, gathered).wait()
        return gathered.tolist(), part.tolist()

    with live_members(*THREE) as members:
        found = members.together(work)
    whole = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]
    sums = [[0.0, 3.0], [30.0, 33.0], [60.0, 63.0]]
    assert found == {name: (whole, sums[rank]) for rank, name in enumerate(THREE)}


def test_a_gather_that_a_member_never_joins_can_be_given_up():
    with live_members(*PAIR) as members:
        group = members.make("shard", PAIR)[PAIR[0]]
        pending = group.gather_async(torch.empty(4), torch.ones(2))
        group.wake("a freeze")
        with pytest.raises(GroupBroken, match="a freeze"):
            pending.wait()


def test_messages_arrive_in_their_order_in_both_directions():
    def work(communicator):
        group = communicator.make("link", PAIR, 0)
        (peer,) = set(PAIR) - {communicator.worker}
        received = [torch.empty(3) for _ in range(6)]
        arriving = [group.receive(tensor, peer) for tensor in received]
        sent = [torch.full((3,), 10.0 * group.rank + number) for number in range(6)]
        for pending in [*[group.send(tensor, peer) for tensor in sent], *arriving]:
            pending.wait()
        return [tensor[0].item() for tensor in received]

    with live_members(*PAIR) as members:
        results = members.together(work)
    assert results == {PAIR[0]: [10, 11, 12, 13, 14, 15], PAIR[1]: [0, 1, 2, 3, 4, 5]}


def test_a_collective_says_when_it_is_done():
    with live_members(*PAIR) as members:
        groups = members.make("reduce", PAIR)
        early = groups[PAIR[0]].all_reduce_async(torch.ones(4))
        assert not early.is_done()
        groups[PAIR[1]].all_reduce(torch.ones(4))
        early.wait()
        assert early.is_done()


def test_groups_of_two_epochs_are_apart():
    def work(communicator):
        old = communicator.make("reduce", PAIR, 0)
        new = communicator.make("reduce", PAIR, 1)
        a, b = torch.ones(1), torch.ones(1) * 5
        first, second = old.all_reduce_async(a), new.all_reduce_async(b)
        second.wait()
        first.wait()
        return a.item(), b.item()

    with live_members(*PAIR) as members:
        assert members.together(work) == dict.fromkeys(PAIR, (2.0, 10.0))


def test_a_group_of_one_needs_no_worker():
    with live_members("n0.g0") as members:
        group = members.communicators["n0.g0"].make("all", ["n0.g0"], 0)
        assert (group.size, group.rank) == (1, 0)
        group.wake("nothing to wake")


# Deadlines.


def test_a_peer_that_never_comes():
    with live_members(*PAIR, timeout_ms=500) as members:
        start = time.monotonic()
        with pytest.raises(GroupBroken, match=r"link group \(n0.g0, n0.g1\) of epoch 3"):
            members.communicators["n0.g0"].make("link", PAIR, 3)
        assert 0.4 < time.monotonic() - start < 5
        assert members.communicators["n0.g0"].num_live == 0


OPERATIONS = {
    "receive": (lambda group: group.receive(torch.empty(1), PAIR[1]), "receive from n0.g1"),
    "send": (lambda group: group.send(torch.empty(HUGE), PAIR[1]), "send to n0.g1"),
    "all-reduce": (lambda group: group.all_reduce_async(torch.ones(1)), "all-reduce"),
}


@pytest.mark.parametrize(("operation", "name"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_a_peer_that_takes_no_part(operation, name):
    with live_members(*PAIR, timeout_ms=500) as members:
        group = members.make("link", PAIR)[PAIR[0]]
        start = time.monotonic()
        with pytest.raises(GroupBroken, match=rf"link group \(n0.g0, n0.g1\): {name}: "):
            operation(group).wait()
        assert 0.4 < time.monotonic() - start < 5


# Waking.


def started(operation, barrier):
    """Start something, let the others know, and wait for it."""

    def work(group):
        pending = operation(group)
        barrier.wait()
        pending.wait()

    return work


@pytest.mark.parametrize(("operation", "name"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_wake_ends_what_is_blocked_here_and_at_live_peers(operation, name):
    with live_members(*THREE, timeout_ms=60_000) as members:
        pair, apart = members.make("link", PAIR), members.make("link", PAIR[::-1], 1)
        barrier = threading.Barrier(3, timeout=20)
        communicator = members.communicators[PAIR[0]]
        calls = {
            "here": started(operation, barrier),
            # The peer waits in another group of the two, for something that never comes.
            "there": started(lambda group: group.receive(torch.empty(1), PAIR[0]), barrier),
            "waker": lambda _: (barrier.wait(), communicator.wake("round 7"), time.monotonic())[2],
        }
        given = {"here": pair[PAIR[0]], "there": apart[PAIR[1]], "waker": None}
        results = run_together(calls, given)
        assert time.monotonic() - results["waker"] < 5
        assert str(results["here"]) == f"link group (n0.g0, n0.g1): {name}: round 7"
        assert str(results["there"]).startswith("link group (n0.g1, n0.g0): receive from n0.g0: ")


def test_nothing_starts_after_a_wake_but_others_go_on():
    with live_members(*THREE) as members:
        woken, others = members.make("link", PAIR), members.make("link", THREE[1:])
        members.communicators["n0.g0"].wake("round 7")
        with pytest.raises(GroupBroken, match="all-reduce: round 7"):
            woken["n0.g0"].all_reduce(torch.ones(1))
        with pytest.raises(GroupBroken, match=r"tensor group \(n0.g0, n0.g1\): round 7"):
            members.communicators["n0.g0"].make("tensor", PAIR, 1)
        calls = dict.fromkeys(THREE[1:], lambda group: group.all_reduce(torch.ones(1)))
        assert run_together(calls, others) == dict.fromkeys(THREE[1:])


def test_what_had_arrived_but_was_not_seen_before_the_wake_does_not_count():
    with live_members(*PAIR) as members:
        groups = members.make("reduce", PAIR)
        pending = groups[PAIR[0]].all_reduce_async(torch.ones(1))
        groups[PAIR[1]].all_reduce(torch.ones(1))
        while not pending.is_done():
            pass
        members.communicators[PAIR[0]].wake("round 7")
        with pytest.raises(GroupBroken, match="round 7"):
            pending.wait()


def test_the_first_reason_stays():
    with live_members(*PAIR) as members:
        groups = members.make("reduce", PAIR)
        members.communicators[PAIR[0]].wake("round 7")
        members.communicators[PAIR[0]].wake("round 8")
        with pytest.raises(GroupBroken, match="round 7"):
            groups[PAIR[0]].all_reduce(torch.ones(1))


# Nothing is left behind.


def growth(numbers):
    """From any of them to any later one."""
    return max(later - earlier for earlier, later in combinations(numbers, 2))


@pytest.mark.slow
@pytest.mark.parametrize("number", some([100, 300], [100]))
def test_hundreds_of_groups_leave_nothing_behind(number):
    def generation(members, names, epoch):
        def work(communicator):
            group = communicator.make("reduce", names, epoch)
            tensor = torch.ones(3)
            group.all_reduce(tensor)
            communicator.close([group])
            return tensor[0].item()

        results = members.together(work, *names)
        assert results == dict.fromkeys(names, float(len(names)))

    with live_members(*THREE) as members:
        counts = []
        for epoch in range(number):
            generation(members, (PAIR, THREE)[epoch % 2], epoch)
            if epoch % 25 == 24:
                counts.append(count_resources())
        print(f"(file descriptors, threads) every 25 generations: {counts}")
        # A thread or two may still be on its way out; a leak would be of hundreds. (What earlier
        # tests have left behind may end meanwhile: there may be fewer.)
        for numbers in zip(*counts, strict=True):
            assert growth(numbers) <= 4
        assert all(communicator.num_live == 0 for communicator in members.communicators.values())


@pytest.mark.slow
def test_broken_and_woken_groups_leave_nothing_behind():
    counts = []
    for _ in range(8):
        with live_members(*PAIR, timeout_ms=200) as members:
            groups = members.make("link", PAIR)
            with pytest.raises(GroupBroken):
                groups[PAIR[0]].receive(torch.empty(1), PAIR[1]).wait()
            members.communicators[PAIR[1]].wake("round 7")
            with pytest.raises(GroupBroken):
                members.communicators[PAIR[0]].make("tensor", PAIR, 1)
        del groups, members
        counts.append(count_resources())
    for numbers in zip(*counts, strict=True):
        assert growth(numbers) <= 4, counts


def test_closed_groups_take_no_orders():
    with live_members(*PAIR) as members:
        groups = members.make("link", PAIR)
        communicator = members.communicators[PAIR[0]]
        assert communicator.num_live == 1
        communicator.close([groups[PAIR[0]]])
        assert communicator.num_live == 0
        with pytest.raises(GroupBroken, match="the group is closed"):
            groups[PAIR[0]].send(torch.ones(1), PAIR[1])


def test_one_connection_to_the_store_serves_many_groups():
    with live_members(*PAIR) as members:
        communicator = members.communicators[PAIR[0]]
        store, clones = communicator._store, []

        class Counting:
            def clone(self):
                clones.append(None)
                return store.clone()

        communicator._store = Counting()
        for epoch in range(4):
            members.make("link", PAIR, epoch)
        assert len(clones) == 1


@pytest.mark.process
def test_a_dead_peer_is_an_error_not_a_hang(cluster):
    """Killed in the middle of a reduction: the others are told long before the deadline of 20 s."""
    store = cluster.fresh_store()
    arguments = [(worker, THREE, store, THREE[1]) for worker in THREE]
    results = cluster.run(reduce_until_death, arguments, may_die=[1])
    assert results[1] == Died(-9)
    for story, seconds in (results[0], results[2]):
        assert story.startswith("reduce group (n0.g0, n0.g1, n0.g2): all-reduce: ")
        assert seconds < 5
        print(f"told {seconds * 1e3:.0f} ms after the death: {story}")


# Bad input and words.


def raise_from_cause():
    try:
        raise GroupBroken("n0.g1 is gone", ("n0.g1",))
    except GroupBroken as error:
        raise RuntimeError("backward failed") from error


def raise_while_handling():
    try:
        raise_from_cause()
    except RuntimeError:
        raise KeyError("x")  # noqa: B904 (as careless code does)


def raise_and_hide():
    try:
        raise_from_cause()
    except RuntimeError:
        raise ValueError("backward failed") from None


@pytest.mark.parametrize("raise_wrapped", [raise_from_cause, raise_while_handling, raise_and_hide])
def test_a_group_error_comes_out_of_what_others_made_of_it(raise_wrapped):
    with pytest.raises(GroupBroken, match="is gone") as found, group_errors_unwrapped():
        raise_wrapped()
    assert found.value.blamed == ("n0.g1",)
    chain = [found.value]
    while chain[-1].__context__ is not None:
        assert chain[-1].__context__ not in chain, "a circle would keep the frames alive"
        chain.append(chain[-1].__context__)


def test_other_errors_stay_as_they_are():
    own = ValueError("a mistake of the model")
    own.__context__ = own  # chains may be circular
    with pytest.raises(ValueError, match="a mistake") as found, group_errors_unwrapped():
        raise own
    assert found.value is own


def test_an_unknown_backend():
    with pytest.raises(HoldfastError, match="backend 'mpi' is unknown; known: gloo, nccl"):
        Communicator("n0.g0", None, backend="mpi", host="127.0.0.1", timeout_ms=1)


def test_a_group_of_others():
    with (
        live_members("n0.g7") as members,
        pytest.raises(InternalError, match=r"n0.g7 is not in link"),
    ):
        members.communicators["n0.g7"].make("link", PAIR, 0)


def test_what_a_transport_says_without_its_paths():
    error = RuntimeError("[/a/b/pair.cc:5] Timed out waiting 50ms This is typically a firewall\nx")
    assert first_line(error) == "Timed out waiting 50ms"
    assert first_line(RuntimeError()) == "RuntimeError"


def test_long_groups_are_named_by_their_ends():
    assert short_list(["a", "b"]) == "(a, b)"
    assert short_list(list("abcdef")) == "(a, b, ... f; 6)"
    assert str(LiveGroup("all", THREE, 0, None)) == "all group (n0.g0, n0.g1, n0.g2)"


def test_a_wake_reaches_peers_beyond_those_that_are_gone():
    """n0.g0 knocks at n0.g1 first, whose connections are closed; n0.g2 waits for n0.g0 alone."""
    four = (*THREE, "n0.g3")
    with live_members(*four, timeout_ms=60_000) as members:
        groups = members.make("link", four)
        pending = groups["n0.g2"].receive(torch.empty(1), "n0.g0")
        groups["n0.g1"].wake("gone")
        groups["n0.g3"].wake("gone")
        reasons = []

        def wait():
            with pytest.raises(GroupBroken) as caught:
                pending.wait()
            reasons.append(str(caught.value))

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        groups["n0.g0"].wake("round 2")
        waiting.join(10)
        assert reasons
        assert "n0.g0" in reasons[0]
