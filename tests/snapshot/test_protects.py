"""What a job survives the loss of, compared with losing it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.without_workers import without_workers
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import SnapshotOptions, plan_arenas
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import VersionStatus, assumed_manifest, survey
from holdfast.snapshot.protects import (
    CHECKPOINTS,
    HOLDERS,
    SNAPSHOTS,
    protection_of,
    spread_of,
    survives_any_node,
)
from support.random_plans import irregular_plans, make_units, regular_plans

V = Version(3, 1)


def shape(replicas=1, stages=1, tensor=1, per_node=1):
    return regular_plan(
        make_units(4),
        replicas=replicas,
        stages=stages,
        tensor=tensor,
        micro_batches=replicas,
        devices_per_node=per_node,
    )


SHAPES = st.builds(
    shape,
    replicas=st.integers(1, 4),
    stages=st.integers(1, 2),
    tensor=st.integers(1, 2),
    per_node=st.integers(1, 3),
)


def is_whole(layouts):
    found = survey(assumed_manifest(layout, V) for layout in layouts)
    return bool(found) and found[0].is_complete


@settings(max_examples=60)
@given(SHAPES, st.booleans(), st.integers(0, 7))
def test_a_version_survives_a_node_if_it_is_whole_without_any(plan, parity, lost):
    shares = plan_arenas(plan, SnapshotOptions(job="j", parity=parity)).shares
    layouts = [*shares.layouts, *shares.copies]
    nodes = sorted({layout.node for layout in layouts})
    if lost < len(nodes):  # some of the protection may be used up already
        layouts = [layout for layout in layouts if layout.node != nodes[lost]]
    if not is_whole(layouts):
        return
    left = sorted({layout.node for layout in layouts})
    brute = all(is_whole([one for one in layouts if one.node != node]) for node in left)
    assert survives_any_node(layouts) == brute


@settings(max_examples=60)
@given(SHAPES)
def test_what_holders_survive_is_what_can_be_left_out(plan):
    spread = spread_of(plan)

    def is_left(lost):
        rest = [worker for worker in plan.workers if worker not in lost]
        try:
            return bool(rest) and without_workers(plan, lost) is not None
        except Exception:
            return False

    nodes = sorted(set(map(node_of, plan.workers)))
    on = {node: [w for w in plan.workers if node_of(w) == node] for node in nodes}
    assert spread.workers == all(is_left([worker]) for worker in plan.workers)
    assert spread.nodes == all(is_left(on[node]) for node in nodes)


def found(plan, *versions, disk=False):
    return dict(protection_of(plan, spread_of(plan), versions, has_checkpoint=disk).means)


WHOLE = VersionStatus(V, "p", True, "")
BEYOND = msgspec.structs.replace(WHOLE, survives_node=True)
TORN = msgspec.structs.replace(WHOLE, is_complete=False, survives_node=True)


@pytest.mark.parametrize(
    ("plan", "versions", "disk", "means"),
    [
        (shape(2), (), False, (HOLDERS, HOLDERS, "", "")),
        (shape(2), (TORN,), False, (HOLDERS, HOLDERS, "", "")),
        (shape(2), (WHOLE,), False, (HOLDERS, HOLDERS, SNAPSHOTS, "")),
        (shape(1, 2), (), False, ("", "", "", "")),
        (shape(1, 2), (WHOLE,), False, (SNAPSHOTS, "", SNAPSHOTS, "")),
        (shape(1, 2), (WHOLE, BEYOND), False, (SNAPSHOTS, SNAPSHOTS, SNAPSHOTS, "")),
        (shape(1, 2), (), True, (CHECKPOINTS,) * 4),
        (shape(1, 2), (WHOLE,), True, (SNAPSHOTS, CHECKPOINTS, SNAPSHOTS, CHECKPOINTS)),
    ],
)
def test_on_several_nodes(plan, versions, disk, means):
    losses = ("any one worker", "any one node", "all workers", "all nodes")
    assert found(plan, *versions, disk=disk) == dict(zip(losses, means, strict=True))


def test_on_one_node():
    plan = shape(2, per_node=2)
    assert found(plan, WHOLE) == {
        "any one worker": HOLDERS,
        "all workers": SNAPSHOTS,
        "the node": "",
    }
    assert found(shape(), disk=True) == {"the worker": CHECKPOINTS, "the node": CHECKPOINTS}


def test_in_words():
    protection = protection_of(shape(2), spread_of(shape(2)), (WHOLE,), has_checkpoint=False)
    assert protection.against == ("any one worker", "any one node", "all workers")
    assert protection.not_against == ("all nodes",)
    assert protection.reason.startswith("any one worker: other workers hold the same; any one")
    assert protection.reason.endswith("all nodes: nothing")


@settings(max_examples=60)
@given(st.one_of(regular_plans(), irregular_plans()))
def test_the_quick_way_finds_what_the_holder_map_says(plan):
    holders = HolderMap(plan)
    groups = [cell.holders for tensor in holders.tensors for cell in holders.cells(tensor)]
    spread = spread_of(plan)
    assert spread.workers == all(len(group) > 1 for group in groups)
    assert spread.nodes == all(len(set(map(node_of, group))) > 1 for group in groups)
