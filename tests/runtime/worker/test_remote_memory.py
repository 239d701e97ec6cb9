"""Bytes of snapshots from other hosts: verified, and one source less where an agent is gone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from holdfast.plan.build import regular_plan
from holdfast.runtime.wire import connection
from holdfast.runtime.wire.host_messages import PeerAccess
from holdfast.runtime.wire.tls import NO_TLS, TlsFiles
from holdfast.runtime.worker import remote_memory
from holdfast.runtime.worker.group_store import PeerDirectory
from holdfast.runtime.worker.remote_memory import RemoteMemories
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.manifest import Holding, by_version
from holdfast.snapshot.memory.peer_copies import CopyFailed, pull_copy
from holdfast.snapshot.memory.sources import NodeMemory, Unreadable
from support.certificates import make_certificate, needs_openssl
from support.peers import SECRET, serving
from support.random_plans import make_units
from support.snapshots import Cluster, fill_slot, load_all, random_state

PLAN = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
V1, V2 = Version(1, 0), Version(2, 0)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(PLAN, tmp_path)
    yield made
    made.close()


def save(cluster, version, seed: int = 0):
    state = random_state(PLAN, seed)
    for arena in cluster.arenas:
        slot = arena.begin(version)
        slot.seal(fill_slot(slot, state))
    return state


@contextmanager
def hosts(
    cluster, here: str = "n9", gone: tuple[str, ...] = (), tls: TlsFiles = NO_TLS
) -> Iterator[RemoteMemories]:
    """An agent per node; those that are gone have an address where no process listens."""
    with ExitStack() as stack:
        peers = {}
        for node in ("n0", "n1"):
            arenas = [arena for arena in cluster.arenas if arena.layout.node == node]
            memory = NodeMemory(node, arenas)
            with ExitStack() as one:
                peers[node] = one.enter_context(serving(lambda memory=memory: memory, tls))
                if node not in gone:
                    stack.push(one.pop_all())
        access = PeerAccess(node=here, secret=SECRET, peers=peers, tls=tls)
        yield RemoteMemories(PeerDirectory(access))


def catalog_of(sources) -> Catalog:
    """Of the newest version, as a worker of another node sees it."""
    manifests = [manifest for source in sources for manifest in source.manifests()]
    return Catalog(Holding(by_version(manifests)[0]), sources, "n9")


def test_a_version_is_loaded_from_other_hosts(cluster, monkeypatch) -> None:
    monkeypatch.setattr(remote_memory, "MAX_READ_BYTES", 100)  # in many questions
    monkeypatch.setattr(connection, "PIECE_BYTES", 7)  # and in many pieces of an answer
    state = save(cluster, V1)
    with hosts(cluster) as others, others.open() as sources:
        catalog = catalog_of(sources)
        assert all(report.bytes_by_origin() for report in load_all(PLAN, catalog, state))


def test_what_is_read_is_put_where_it_is_wanted(cluster) -> None:
    save(cluster, V1)
    with hosts(cluster) as others, others.open() as sources:
        catalog = catalog_of(sources)
        for entry in catalog.holding.entries.values():
            own = bytearray(entry.num_bytes)
            found = catalog.fetch(entry, into=memoryview(own))
            assert found.in_place
            assert bytes(own) == bytes(catalog.fetch(entry).data)
            assert not catalog.fetch(entry, 1, into=memoryview(own)[1:]).in_place


@pytest.mark.slow
@needs_openssl
def test_it_is_read_over_tls(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(connection, "PIECE_BYTES", 7)
    state = save(cluster, V1)
    with hosts(cluster, tls=make_certificate(tmp_path)) as others, others.open() as sources:
        catalog = catalog_of(sources)
        assert all(report.bytes_by_origin() for report in load_all(PLAN, catalog, state))


def test_several_threads_read_at_once(cluster) -> None:
    """Each over a connection of its own."""
    save(cluster, V1)
    with hosts(cluster) as others, others.open() as sources:
        (node,) = [source for source in sources if source.node == "n0"]
        (manifest, *_) = node.manifests()
        entry = manifest.layout.entries[0]

        def read(_: int) -> bytes:
            return bytes(node.read(manifest.place, entry.key, 0, entry.num_bytes))

        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(read, range(50)))) == 1


def test_a_host_that_is_gone_is_one_source_less(cluster) -> None:
    save(cluster, V1)
    with hosts(cluster, gone=("n0",)) as others, others.open() as sources:
        assert [source.node for source in sources] == ["n1"]


def test_the_own_node_is_not_asked(cluster) -> None:
    save(cluster, V1)
    with hosts(cluster, here="n1") as others, others.open() as sources:
        assert [source.node for source in sources] == ["n0"]


def test_a_copy_is_pulled_from_another_host(cluster) -> None:
    save(cluster, V1)
    copy = cluster.copies[0]
    owner = next(a for a in cluster.arenas if a.layout.worker == copy.layout.worker).layout.node
    with hosts(cluster) as others:
        with others.open_node(owner) as source:
            pull_copy(copy, source, V1)
            assert copy.slot(V1) is not None
        save(cluster, V2, 1)
        arena = next(a for a in cluster.arenas if a.layout.worker == copy.layout.worker)
        arena.slot(V2).tensor(copy.layout.entries[-1].key)[3] ^= 8
        with others.open_node(owner) as source, pytest.raises(CopyFailed, match="arrived with"):
            pull_copy(copy, source, V2)


def test_a_node_that_cannot_be_reached_is_unreadable(cluster) -> None:
    with (
        hosts(cluster, gone=("n0",)) as others,
        pytest.raises(Unreadable, match=r"n0: .*refused"),
        others.open_node("n0"),
    ):
        pass


def test_a_pinned_version_is_not_overwritten(cluster) -> None:
    save(cluster, V1)
    with hosts(cluster) as others:
        assert sorted(source.node for source in others.pin(V1)) == ["n0", "n1"]
        for step in range(2, 9):
            save(cluster, Version(step, 0), step)
        assert all(arena.slot(V1) is not None for arena in cluster.arenas)
        assert others.pin(Version(99, 0)) == []
        others.release()
        for step in range(9, 16):
            save(cluster, Version(step, 0), step)
        assert all(arena.slot(V1) is None for arena in cluster.arenas)
