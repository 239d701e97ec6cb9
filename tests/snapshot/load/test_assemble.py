"""Saved under one plan, loaded under any other, equal to the last bit, from whatever is left."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, InternalError
from holdfast.plan.build import regular_plan
from holdfast.plan.units import TensorSpec, Unit
from holdfast.snapshot.load.assemble import CannotLoad, Want, assemble, fetch_other
from holdfast.snapshot.load.catalog import LOCAL, PARITY_SOURCE, PEER, STORAGE
from holdfast.snapshot.memory.arena import Version
from holdfast.snapshot.share import OTHER_KEY
from support.held import held, new_since
from support.random_plans import irregular_plans, make_units, regular_plans, unit_lists
from support.snapshots import Cluster, check_wants, load_all, random_state, wants_for

V = Version(5, 1)
UNITS = make_units(6, tied=True)


def plan_of(units=UNITS, **degrees):
    options = {"micro_batches": 12, "devices_per_node": 2} | degrees
    return regular_plan(units, **options)


PLANS = {
    "2x2x2": plan_of(replicas=2, stages=2, tensor=2),
    "stages 3": plan_of(stages=3),
    "tensor 1": plan_of(),
    "tensor 3": plan_of(tensor=3),
    "shard 2": plan_of(shard=2, replicas=2),
}


@pytest.mark.parametrize("target", PLANS)
@pytest.mark.parametrize("origin", PLANS)
def test_any_plan_loads_what_any_other_saved(origin, target, tmp_path):
    state = random_state(PLANS[origin])
    cluster = Cluster(PLANS[origin], tmp_path)
    cluster.save(V, state)
    load_all(PLANS[target], cluster.catalog(V), state)
    cluster.close()


@st.composite
def two_plans(draw):
    """Two plans of one model."""
    units = draw(unit_lists(least=2))
    kinds = st.one_of(regular_plans(units), irregular_plans(units))
    return draw(kinds), draw(kinds)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans=two_plans(), data=st.data())
def test_random_plans_with_a_lost_node(plans, data, tmp_path_factory):
    """Any one node may be gone; what is loaded is what was saved."""
    saved, loaded = plans
    state = random_state(saved)
    cluster = Cluster(saved, tmp_path_factory.mktemp("shm"))
    cluster.save(V, state)
    lost = []
    if len(cluster.nodes) > 1:
        lost = data.draw(st.sampled_from([[], *([node] for node in cluster.nodes)]))
    load_all(loaded, cluster.catalog(V, lost=lost), state)
    cluster.close()


def test_local_memory_comes_first(tmp_path):
    plan = plan_of(replicas=2, devices_per_node=1)
    state = random_state(plan)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, state)
    report = assemble(wants_for(plan, "n0.g0"), cluster.catalog(V, here="n0"))
    sizes = report.bytes_by_origin()
    assert list(sizes) == [LOCAL, PEER]
    assert abs(sizes[LOCAL] - sizes[PEER]) < 0.1 * sizes[LOCAL]
    assert report.reasons() == []
    assert str(report).startswith("step 5 (epoch 1): ")
    cluster.close()


def test_a_lost_node_is_made_up_for_by_parity_with_a_reason(tmp_path):
    plan = plan_of(replicas=3, devices_per_node=1)
    state = random_state(plan)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, state)
    reports = load_all(plan, cluster.catalog(V, lost=["n1"]), state)
    assert all(PARITY_SOURCE in report.bytes_by_origin() for report in reports)
    cluster.close()


def test_two_lost_nodes_are_refused_with_the_reason(tmp_path):
    plan = plan_of(replicas=3, devices_per_node=1)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    with pytest.raises(CannotLoad, match=r"no persistent checkpoint.*not in memory"):
        assemble(wants_for(plan, "n0.g0"), cluster.catalog(V, here="n0", lost=["n1", "n2"]))
    cluster.close()


def corrupt(cluster, worker, key, offset=0):
    arena = next(a for a in cluster.arenas if a.layout.worker == worker)
    arena.slot(V).tensor(key)[offset] ^= 1


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_flipped_byte_anywhere_is_seen_and_made_up_for(data, tmp_path_factory):
    plan = plan_of(make_units(2), replicas=2, stages=2, tensor=2)
    state = random_state(plan)
    cluster = Cluster(plan, tmp_path_factory.mktemp("shm"))
    cluster.save(V, state)
    arena = data.draw(st.sampled_from(cluster.arenas))
    entry = data.draw(st.sampled_from(arena.layout.entries))
    offset = data.draw(st.integers(0, entry.num_bytes - 1))
    corrupt(cluster, arena.layout.worker, entry.key, offset)
    load_all(plan, cluster.catalog(V), state)
    cluster.close()


def test_a_flipped_byte_is_named_in_the_reason(tmp_path):
    plan = plan_of(replicas=2, devices_per_node=1)
    state = random_state(plan)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, state)
    entry = cluster.shares.layouts[0].entries[0]
    corrupt(cluster, "n0.g0", entry.key)
    wants = wants_for(plan, "n0.g0")
    report = assemble(wants, cluster.catalog(V, here="n0"))
    check_wants(wants, state)
    (reason,) = report.reasons()
    assert f"n0: chunk 0 of '{entry.key}' has checksum" in reason
    cluster.close()


def test_a_flipped_byte_without_protection_is_an_error_never_a_wrong_byte(tmp_path):
    plan = plan_of(replicas=2, devices_per_node=2)  # one node: nothing protects it
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    corrupt(cluster, "n0.g0", cluster.shares.layouts[0].entries[0].key)
    with pytest.raises(CannotLoad, match="no parity protects it"):
        assemble(wants_for(plan, "n0.g0"), cluster.catalog(V, here="n0"))
    cluster.close()


class Shelf:
    """Storage that has everything."""

    def __init__(self, state, version=V, error=None):
        self.name, self.version = "shelf", version
        self.state, self.error, self.asked = state, error, []

    def read(self, wants):
        if self.error:
            raise self.error
        for want in wants:
            index = tuple(slice(low, high) for low, high in want.box)
            want.out.copy_(self.state[want.tensor, want.kind][index])
        self.asked = list(wants)


def test_storage_of_the_same_version_is_the_last_source(tmp_path):
    plan = plan_of(replicas=3, devices_per_node=1)
    state = random_state(plan)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, state)
    catalog = cluster.catalog(V, here="n0", lost=["n1", "n2"])
    wants, shelf = wants_for(plan, "n0.g0"), Shelf(state)
    report = assemble(wants, catalog, shelf)
    check_wants(wants, state)
    sizes = report.bytes_by_origin()
    assert set(sizes) == {LOCAL, STORAGE}
    assert all("not in memory" in line for line in report.reasons())
    assert sum(w.out.numel() * 4 for w in shelf.asked) == sizes[STORAGE]
    cluster.close()


def test_storage_alone_is_enough():
    plan = plan_of()
    state = random_state(plan)
    wants = wants_for(plan, "n0.g0")
    report = assemble(wants, None, Shelf(state))
    check_wants(wants, state)
    assert set(report.bytes_by_origin()) == {STORAGE}


def test_storage_that_fails_is_told(tmp_path):
    with pytest.raises(CannotLoad, match="shelf: it burnt"):
        assemble(wants_for(plan_of(), "n0.g0"), None, Shelf({}, error=HoldfastError("it burnt")))


def test_two_versions_never_meet(tmp_path):
    plan = plan_of()
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    other = Shelf({}, version=Version(5, 2))
    with pytest.raises(InternalError, match="two versions"):
        assemble([], cluster.catalog(V), other)
    cluster.close()


def test_a_version_overwritten_while_it_is_read_is_not_used(tmp_path):
    """The bytes were right when they were checked; whether they still were when copied is not
    known.
    """
    plan = plan_of(make_units(1))
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    catalog = cluster.catalog(V, here="n0")
    fetch = catalog.fetch

    def overwritten_meanwhile(entry, start, stop, into):
        found = fetch(entry, start, stop, into)
        cluster.arenas[0].roll_back(Version(4, 1))
        return found

    catalog.fetch = overwritten_meanwhile
    with pytest.raises(CannotLoad, match="any more"):
        assemble(wants_for(plan, "n0.g0"), catalog, num_threads=1)
    cluster.close()


def test_wrong_targets_are_refused(tmp_path):
    plan = plan_of()
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    catalog = cluster.catalog(V)
    short = Want("block.0.norm", "parameter", ((0, 5),), torch.zeros(4))
    with pytest.raises(HoldfastError, match=r"shape \(5,\), its target \(4,\)"):
        assemble([short], catalog)
    wide = Want("block.0.norm", "parameter", ((0, 5),), torch.zeros(5, dtype=torch.float64))
    with pytest.raises(HoldfastError, match=r"is torch.float64 here, saved was float32"):
        assemble([wide], catalog)
    cluster.close()


def test_scalars_and_other_dtypes(tmp_path):
    units = (Unit("u", (TensorSpec("scale", ()), TensorSpec("w", (7, 3)))),)
    plan = plan_of(units, replicas=3, devices_per_node=1)
    state = random_state(plan, dtype=torch.bfloat16)
    cluster = Cluster(plan, tmp_path, dtype="bfloat16")
    cluster.save(V, state)
    for lost in ([], ["n0"], ["n1"], ["n2"]):
        load_all(plan, cluster.catalog(V, lost=lost), state)
    cluster.close()


def test_views_of_larger_tensors_are_filled_in_place(tmp_path):
    plan = plan_of()
    state = random_state(plan)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, state)
    large = torch.zeros(10, 20)
    want = Want("block.0.wo", "parameter", ((1, 3), (2, 9)), large[4:6, 5:12])
    assemble([want], cluster.catalog(V))
    assert torch.equal(large[4:6, 5:12], state["block.0.wo", "parameter"][1:3, 2:9])
    assert int((large != 0).sum()) == 14
    cluster.close()


def test_loading_again_and_again_leaves_nothing_open(tmp_path):
    plan = plan_of(make_units(1), replicas=2, devices_per_node=1)
    state = random_state(plan)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, state)

    before = held()
    for _ in range(10):
        assemble(wants_for(plan, "n0.g0"), cluster.catalog(V, here="n0", lost=["n1"]))
    assert new_since(before) == []
    cluster.close()


def test_what_belongs_to_no_slice(tmp_path):
    plan = plan_of(replicas=2, devices_per_node=1)
    cluster = Cluster(plan, tmp_path)
    cluster.save(V, random_state(plan))
    assert fetch_other(cluster.catalog(V), OTHER_KEY) == bytes([7]) * 16
    corrupt(cluster, "n0.g0", OTHER_KEY)
    assert fetch_other(cluster.catalog(V, here="n0"), OTHER_KEY) == bytes([7]) * 16
    corrupt(cluster, "n1.g0", OTHER_KEY)
    with pytest.raises(CannotLoad):
        fetch_other(cluster.catalog(V, here="n0"), OTHER_KEY)
    with pytest.raises(CannotLoad, match="no source has 'x'"):
        fetch_other(cluster.catalog(V), "x")
    cluster.close()
