"""Groups find each other through the agents, and only with the job's secret."""

import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch

from holdfast.engine.communicator import Communicator, StoreOfGroups
from holdfast.runtime.agent.peer_service import KEPT_EPOCHS, GroupKeys
from holdfast.runtime.wire.host_messages import KeyValues, Peer, PeerAccess
from holdfast.runtime.wire.peer_client import PeerGone
from holdfast.runtime.worker.group_store import GroupStore, GroupStores, PeerDirectory
from holdfast.snapshot.memory.sources import NodeMemory
from support.peers import SECRET, serving


@pytest.fixture
def peer() -> Iterator[Peer]:
    with serving(lambda: NodeMemory("n0", ())) as found:
        yield found


def directory(peer: Peer, secret: str = SECRET, name: str = "n0.g0") -> PeerDirectory:
    return PeerDirectory(PeerAccess(node="n9", secret=secret, peers={"n0": peer}), name)


def test_keys_are_waited_for() -> None:
    keys, told = GroupKeys(), []
    keys.wait("asker", ("e1/a", "e1/b"), told.append)
    keys.set("e1/a", b"1")
    assert told == []
    keys.set("e1/b", b"2")
    assert told == [KeyValues(values=(b"1", b"2"))]
    keys.wait("asker", ("e1/c",), told.append)
    keys.gone("asker")
    keys.set("e1/c", b"3")
    assert len(told) == 1


def test_keys_of_old_epochs_are_forgotten() -> None:
    keys, told = GroupKeys(), []
    keys.set("e1/a", b"old")
    keys.set("x", b"of no epoch")
    keys.set(f"e{KEPT_EPOCHS + 2}/a", b"new")
    keys.wait("asker", ("e1/a",), told.append)
    assert told == []
    keys.wait("asker", ("x",), told.append)
    assert len(told) == 1


def test_what_one_sets_another_gets(peer) -> None:
    one, other = GroupStore(directory(peer), "n0", 10), GroupStore(directory(peer), "n0", 10)
    one.set("e1/key", b"\0value")
    other.wait(["e1/key"], timedelta(seconds=10))
    assert other.get("e1/key") == b"\0value"
    assert other.check(["e1/key"])
    assert not other.check(["e1/key", "e1/other"])
    one.rest()
    assert one.get("e1/key") == b"\0value"  # connected again
    one.rest()
    other.rest()


def test_a_key_that_does_not_come_is_an_error(peer) -> None:
    store = GroupStore(directory(peer), "n0", 10)
    with pytest.raises(PeerGone, match=r"no answer within 0\.05 s"):
        store.wait(["e1/never"], timedelta(milliseconds=50))


def test_a_wrong_secret_is_refused(peer) -> None:
    store = GroupStore(directory(peer, "another secret, long enough"), "n0", 10)
    with pytest.raises(PeerGone, match="hung up before it proved anything"):
        store.set("e1/key", b"value")


def test_an_unknown_node_and_a_dead_agent_are_errors(peer) -> None:
    with pytest.raises(PeerGone, match=r"n7 is was not said within 0\.01 s"):
        directory(peer).connect("n7", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PeerGone, match="refused"):
        directory(Peer("127.0.0.1", port)).connect("n0", 1)


def test_an_agent_that_moved_is_found(peer) -> None:
    known = PeerDirectory(PeerAccess(node="n9", secret=SECRET, peers={}))
    threading.Timer(0.01, known.learn, [{"n0": peer}]).start()
    known.connect("n0", 10).close()


def test_groups_are_made_over_it(peer) -> None:
    members, sums = ("n0.g0", "n1.g0"), {}

    def take_part(worker: str) -> None:
        stores = GroupStores(directory(peer, name=worker), 20)
        assert isinstance(stores, StoreOfGroups)
        made = Communicator(worker, stores, backend="gloo", host="127.0.0.1", timeout_ms=20_000)
        group = made.make("reduce", members, 1)
        tensor = torch.full((2,), 1.0 + members.index(worker))
        group.all_reduce(tensor)
        sums[worker] = tensor.tolist()
        made.close_all()

    threads = [threading.Thread(target=take_part, args=(worker,)) for worker in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {"n0.g0": [3.0, 3.0], "n1.g0": [3.0, 3.0]}
