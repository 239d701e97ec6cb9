"""Every slice is saved once, by one of its holders, and protected on another node."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.state import parse_state
from holdfast.plan.units import TensorSpec, Unit, box_size, intersect, subtract, with_kinds
from holdfast.plan.workers import node_of
from holdfast.snapshot.layout import OTHER, PARITY, entry_key
from holdfast.snapshot.share import MAX_COLUMN, plan_shares, strip_bytes
from support.random_plans import irregular_plans, make_units, regular_plans

PLANS = st.one_of(regular_plans(), irregular_plans())


def state_entries(layout):
    return [entry for entry in layout.entries if entry.kind not in (OTHER, PARITY)]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(plan=PLANS, parity=st.booleans())
def test_every_element_is_saved_once_by_a_holder(plan, parity):
    shares = plan_shares(plan, parity=parity)
    holders = HolderMap(plan)
    saved = {}
    for layout in shares.layouts:
        layout.check()
        held = holders.slices(layout.worker)
        for entry in state_entries(layout):
            rest = [entry.box]
            for box in held[entry.tensor]:
                rest = [left for piece in rest for left in subtract(piece, box)]
            assert not rest, f"{layout.worker} does not hold all of {entry.key}"
            assert entry.key == entry_key(entry.tensor, entry.box, entry.kind)
            assert entry.num_bytes == 4 * box_size(entry.box)
            saved.setdefault((entry.tensor, entry.kind), []).append(entry.box)
    assert set(saved) == {
        (tensor.name, kind.name)
        for tensor in holders.tensors.values()
        for kind in tensor.kept().kinds
    }
    for (tensor, _), boxes in saved.items():
        assert sum(map(box_size, boxes)) == holders.tensors[tensor].num_elements
        assert all(intersect(a, b) is None for n, a in enumerate(boxes) for b in boxes[:n])


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(plan=PLANS)
def test_every_entry_is_protected_on_another_node_if_there_is_one(plan):
    """By one parity row of a worker that holds it itself, or by one copy."""
    shares = plan_shares(plan)
    owners = {e.key: lay.node for lay in shares.layouts for e in state_entries(lay)}
    protected = {}
    for layout in shares.layouts:
        held = HolderMap(plan).slices(layout.worker)
        for row in layout.rows:
            nodes = [owners[entry.key] for strip in row.strips for entry in strip[:1]]
            assert layout.node not in nodes
            assert len(nodes) == len(set(nodes)), "two strips of a row are on one node"
            for entry in (entry for strip in row.strips for entry in strip):
                assert any(not subtract(entry.box, box) for box in held[entry.tensor])
                protected.setdefault(entry.key, []).append(layout.node)
            assert layout.by_key[row.key].num_bytes == max(map(strip_bytes, row.strips))
    for layout in shares.copies:
        assert layout.node != node_of(layout.worker)
        for entry in layout.entries:
            protected.setdefault(entry.key, []).append(layout.node)
    num_nodes = len({node_of(worker) for worker in plan.workers})
    for key, node in owners.items():
        kept = protected.get(key, [])
        assert all(other != node for other in kept)
        assert len(kept) == (1 if num_nodes > 1 else 0)


@pytest.mark.parametrize("replicas", [2, 3, 5, 9, 17])
def test_replicas_share_evenly_and_parity_adds_its_part(replicas):
    units = (Unit("u", (TensorSpec("w", (4032, 8)), TensorSpec("v", (4096,)))),)
    plan = regular_plan(units, replicas=replicas, micro_batches=replicas, devices_per_node=1)
    layouts = plan_shares(plan).layouts
    total = (4032 * 8 + 4096) * 12
    data = [strip_bytes(state_entries(layout)) for layout in layouts]
    row = 8 * 12
    # Strips are cut to the nearest row, so a share is off by at most a row.
    assert all(abs(size - total / replicas) <= row for size in data)
    for layout, size in zip(layouts, data, strict=True):
        parity = strip_bytes(e for e in layout.entries if e.kind == PARITY)
        nodes = 1 + len(layout.rows[0].strips)
        assert nodes <= MAX_COLUMN
        assert parity <= size / (nodes - 1) + 2 * row


def test_a_node_divides_its_share_among_its_holders():
    units = (Unit("u", (TensorSpec("w", (4000, 8)),)),)
    plan = regular_plan(units, replicas=4, micro_batches=4, devices_per_node=2)
    sizes = [strip_bytes(state_entries(layout)) for layout in plan_shares(plan).layouts]
    assert sizes == [4000 * 8 * 12 // 4] * 4


def test_a_single_holder_gets_a_copy_elsewhere_and_copies_are_spread():
    plan = regular_plan(make_units(3), stages=3, micro_batches=3, devices_per_node=1)
    shares = plan_shares(plan)
    assert [(copy.worker, copy.node) for copy in shares.copies] == [
        ("n0.g0", "n1"),
        ("n1.g0", "n2"),
        ("n2.g0", "n0"),
    ]
    assert all(not layout.rows for layout in shares.layouts)


def test_on_one_node_nothing_can_be_protected():
    plan = regular_plan(make_units(2), replicas=2, micro_batches=2)
    shares = plan_shares(plan)
    assert shares.copies == ()
    assert all(not layout.rows for layout in shares.layouts)


def test_kinds_of_different_width_are_kept_apart():
    state = parse_state("parameter:bfloat16 exp_avg:float32 exp_avg_sq:float32")
    units = with_kinds(make_units(1), lambda tensor: state)
    plan = regular_plan(units, micro_batches=1)
    layout = plan_shares(plan).layouts[0]
    by_kind = {(e.tensor, e.kind): e.num_bytes for e in state_entries(layout)}
    assert 2 * by_kind["block.0.wq", "parameter"] == by_kind["block.0.wq", "exp_avg"]
    kinds = {whole.kinds: whole.dtype for whole in layout.tensors}
    assert kinds == {("parameter",): "bfloat16", ("exp_avg", "exp_avg_sq"): "float32"}


def test_a_worker_finds_its_own():
    shares = plan_shares(regular_plan(make_units(2), stages=2, micro_batches=2))
    assert [shares.layout(worker).worker for worker in ("n0.g0", "n0.g1")] == ["n0.g0", "n0.g1"]


def test_scalars_are_saved_too():
    units = (Unit("u", (TensorSpec("scale", ()), TensorSpec("w", (3,)))),)
    plan = regular_plan(units, replicas=2, micro_batches=2, devices_per_node=1)
    entries = [e for lay in plan_shares(plan).layouts for e in state_entries(lay)]
    assert sorted(e.num_bytes for e in entries if e.tensor == "scale") == [4, 4, 4]


def test_neighbouring_rows_stay_together():
    """A share is a few long pieces, not many short ones."""
    units = (Unit("u", tuple(TensorSpec(f"w{n}", (100, 4)) for n in range(50))),)
    plan = regular_plan(units, replicas=2, micro_batches=2, devices_per_node=1)
    for layout in plan_shares(plan, parity=False).layouts:
        names = [entry.tensor for entry in state_entries(layout) if entry.kind == "parameter"]
        assert len(names) == 25
        assert all(int(a[1:]) + 1 == int(b[1:]) for a, b in pairwise(names))


@pytest.mark.process
@pytest.mark.slow
def test_every_process_comes_to_the_same_shares():
    code = (
        "from holdfast.plan.build import regular_plan\n"
        "from holdfast.plan.units import TensorSpec, Unit\n"
        "from holdfast.snapshot.share import plan_shares\n"
        "units = [Unit(f'u{n}', (TensorSpec(f'w{n}', (100, 4)),)) for n in range(4)]\n"
        "plan = regular_plan(units, replicas=3, stages=2, micro_batches=6, devices_per_node=2)\n"
        "print([layout.digest for layout in plan_shares(plan).layouts])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
