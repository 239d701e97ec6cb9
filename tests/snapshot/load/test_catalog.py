"""Verified reading: the next source for every chunk, a finite number of them."""

import pytest

from holdfast.plan.build import regular_plan
from holdfast.plan.units import TensorSpec, Unit
from holdfast.snapshot.layout import PARITY
from holdfast.snapshot.load.catalog import LOCAL, PARITY_SOURCE, PEER, BytesLost, Catalog, verify
from holdfast.snapshot.memory.arena import Version
from holdfast.snapshot.memory.sources import Unreadable
from support.snapshots import Cluster, flat_bytes, random_state

V = Version(2, 1)
UNITS = (Unit("u", (TensorSpec("w", (120, 3)), TensorSpec("v", (7,)))),)


@pytest.fixture
def parity(tmp_path):
    """Three nodes that hold the same."""
    plan = regular_plan(UNITS, replicas=3, micro_batches=3, devices_per_node=1)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    yield cluster
    cluster.close()


@pytest.fixture
def copied(tmp_path):
    """One node holds it, another keeps a copy."""
    units = (*UNITS, Unit("u2", (TensorSpec("x", (5,)),)))
    plan = regular_plan(units, stages=2, micro_batches=2, devices_per_node=1)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    yield cluster
    cluster.close()


def big_entry(catalog, node):
    entries = [e for e in catalog.holding.entries.values() if e.kind == "parameter"]
    owned = [e for e in entries if catalog.holding.places[e.key][0].node == node]
    return max(owned, key=lambda entry: entry.num_bytes)


def flip(cluster, node, key, offset=0):
    for arena in (*cluster.arenas, *cluster.copies):
        if arena.layout.node == node and key in arena.layout.by_key:
            arena.slot(V).tensor(key)[offset] ^= 1


def test_any_range_is_given(parity):
    catalog = parity.catalog(V, here="n0")
    entry = big_entry(catalog, "n0")
    assert entry.num_bytes > 3 * 64
    whole = flat_bytes(random_state(parity.plan), entry)
    for start, stop in [(0, -1), (0, 1), (63, 65), (64, 128), (100, entry.num_bytes)]:
        found = catalog.fetch(entry, start, stop)
        end = entry.num_bytes if stop < 0 else stop
        assert found.data == whole[start:end]
        assert (found.origin, found.node, found.complaints) == (LOCAL, "n0", [])


def test_one_bad_chunk_is_made_up_for_alone(parity):
    catalog = parity.catalog(V, here="n0")
    entry = big_entry(catalog, "n0")
    flip(parity, "n0", entry.key, 70)
    found = catalog.fetch(entry)
    assert found.data == flat_bytes(random_state(parity.plan), entry)
    assert found.origin == PARITY_SOURCE
    assert "chunk 1 of" in found.complaints[0]
    assert catalog.fetch(entry, 0, 64).origin == LOCAL


def test_chunks_come_from_wherever_they_are_good(copied):
    """The original lost one chunk, the copy another: together they are whole."""
    catalog = copied.catalog(V, here="n0")
    entry = big_entry(catalog, "n0")
    flip(copied, "n0", entry.key, 0)
    flip(copied, "n1", entry.key, 64)
    found = catalog.fetch(entry)
    assert found.data == flat_bytes(random_state(copied.plan), entry)
    assert found.origin == PEER
    flip(copied, "n1", entry.key, 0)
    with pytest.raises(BytesLost, match=r"chunk 0 of .*n0: .*n1: .*no parity protects it"):
        catalog.fetch(entry)


def test_parity_that_lost_a_part_itself_is_not_used(parity):
    catalog = parity.catalog(V, here="n0")
    entry = big_entry(catalog, "n0")
    flip(parity, "n0", entry.key, 0)
    manifest, row = catalog.holding.rows[entry.key]
    flip(parity, manifest.node, row.key, 0)
    for other in catalog.holding.entries.values():
        if other.kind == PARITY:
            flip(parity, manifest.node, other.key, other.num_bytes - 1)
    with pytest.raises(BytesLost, match=f"parity on {manifest.node}: chunk 0"):
        catalog.fetch(entry, 0, 64)


def test_a_source_that_cannot_be_reached_is_passed_over(parity):
    holding = parity.catalog(V).holding
    catalog = Catalog(holding, [m for m in parity.memories() if m.node != "n1"], "n0")
    entry = big_entry(catalog, "n1")
    found = catalog.fetch(entry)
    assert found.origin == PARITY_SOURCE
    assert found.complaints[0] == "n1 cannot be reached"
    assert found.data == flat_bytes(random_state(parity.plan), entry)


def test_a_source_that_gives_too_little_is_passed_over(parity):
    memories = parity.memories()
    read = memories[1].read
    memories[1].read = lambda *args: read(*args)[:-1]
    catalog = Catalog(parity.catalog(V).holding, memories, "n0")
    found = catalog.fetch(big_entry(catalog, "n1"))
    assert "n1 gave" in found.complaints[0]


def test_a_connection_that_breaks_is_one_source_less(parity):
    memories = parity.memories()

    def broken(*_):
        raise ConnectionResetError("reset by peer")

    memories[1].read = broken
    catalog = Catalog(parity.catalog(V).holding, memories, "n0")
    entry = big_entry(catalog, "n1")
    found = catalog.fetch(entry)
    assert found.complaints[0] == "n1: reset by peer"
    assert found.data == flat_bytes(random_state(parity.plan), entry)


def test_no_source_is_asked_without_end(parity):
    """However everything fails, the number of questions is bounded."""
    questions = []

    def fail(*args):
        questions.append(args)
        raise Unreadable("broken")

    memories = parity.memories()
    for memory in memories:
        memory.read = fail
    catalog = Catalog(parity.catalog(V).holding, memories, "n0")
    entry = big_entry(catalog, "n1")
    with pytest.raises(BytesLost, match="broken"):
        catalog.fetch(entry)
    assert len(questions) <= 4


def test_readers_do_not_all_turn_to_the_same_node(tmp_path):
    """What every worker keeps is asked of different nodes, by key."""
    units = (Unit("u", tuple(TensorSpec(f"w{n}", (4,)) for n in range(20))),)
    plan = regular_plan(units, stages=1, micro_batches=1, devices_per_node=1)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    catalog = cluster.catalog(V)
    (manifest,) = catalog.holding.manifests
    for places in catalog.holding.places.values():
        places[:] = [manifest, manifest, manifest]
        places[1] = type(manifest)("n1", V, manifest.layout, manifest.checksums)
    firsts = {catalog._places(entry)[0].node for entry in catalog.holding.entries.values()}
    assert firsts == {"n0", "n1"}
    cluster.close()


def test_everything_is_verified(parity):
    catalog = parity.catalog(V)
    assert list(verify(catalog)) == []
    entry = big_entry(catalog, "n2")
    flip(parity, "n2", entry.key, 100)
    row = next(e for e in catalog.holding.entries.values() if e.kind == PARITY)
    flip(parity, catalog.holding.places[row.key][0].node, row.key)
    found = list(verify(catalog))
    assert len(found) == 2
    assert any("chunk 1 of" in line and entry.key in line for line in found)
    assert any(row.key in line for line in found)
