"""Another node's memory over a connection: the same bytes, and clear words where there are none."""

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.layout import Version
from holdfast.snapshot.loop.remote import MemoryServer, RemoteConnection, remote_memories
from holdfast.snapshot.manifest import ArenaPlace
from holdfast.snapshot.memory.sources import Unreadable
from support.random_plans import make_units
from support.snapshots import Cluster, random_state

pytestmark = pytest.mark.process  # real connections

PLAN = regular_plan(make_units(1), replicas=2, micro_batches=2, devices_per_node=1)
V = Version(3, 1)


@pytest.fixture
def memory(tmp_path):
    cluster = Cluster(PLAN, tmp_path)
    cluster.save(V, random_state(PLAN))
    yield cluster.memories()[0]
    cluster.close()


@pytest.fixture
def server(memory):
    server = MemoryServer({memory.node: memory})
    yield server
    server.close()


@pytest.fixture
def remote(memory, server):
    connection = RemoteConnection(server.address)
    (found,) = remote_memories(memory.manifests(), connection)
    yield found
    connection.close()


def test_every_byte_is_the_same(memory, remote):
    (manifest,) = remote.manifests()
    assert remote.node == memory.node

    def compare(entry):
        data = remote.read(manifest.place, entry.key, 0, entry.num_bytes)
        remote.confirm(manifest.place)
        return bytes(data) == bytes(memory.read(manifest.place, entry.key, 0, entry.num_bytes))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(compare, manifest.layout.entries))


def test_what_is_not_there_is_unreadable(remote):
    place = remote.manifests()[0].place
    with pytest.raises(Unreadable, match="keeps no 'x'"):
        remote.read(place, "x", 0, 1)
    with pytest.raises(Unreadable, match="has no step 9"):
        remote.read(ArenaPlace(place.worker, Version(9, 1), place.plan), "x", 0, 1)


def test_a_server_that_is_gone_is_an_error_of_the_connection(memory):
    server = MemoryServer({memory.node: memory})
    connection = RemoteConnection(server.address)
    (remote,) = remote_memories(memory.manifests(), connection)
    server.close()
    with pytest.raises(ConnectionRefusedError):
        remote.read(memory.manifests()[0].place, "x", 0, 1)


def test_a_stranger_gets_nothing_and_stops_nothing(server, remote, memory):
    with pytest.raises((AuthenticationError, OSError, EOFError)):
        Client(("127.0.0.1", server.address.port), authkey=b"wrong")
    manifest = remote.manifests()[0]
    key = manifest.layout.entries[0].key
    assert remote.read(manifest.place, key, 0, 4) == memory.read(manifest.place, key, 0, 4)
