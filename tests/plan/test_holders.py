"""The holder map against a slow second opinion, element by element."""

from collections import defaultdict

from hypothesis import given, settings

from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from support.boxes import elements
from support.random_plans import irregular_plans, make_units, plans


@settings(max_examples=60)
@given(plans)
def test_cells_say_who_holds_every_element(plan: Plan) -> None:
    holders = HolderMap(plan)
    slow: dict[tuple[str, tuple[int, ...]], set[str]] = defaultdict(set)
    for worker in plan.workers:
        for name, boxes in holders.slices(worker).items():
            for box in boxes:
                for point in elements(box):
                    slow[name, point].add(worker)
    fast: dict[tuple[str, tuple[int, ...]], set[str]] = {}
    for name in holders.tensors:
        for cell in holders.cells(name):
            for point in elements(cell.box):
                assert (name, point) not in fast
                fast[name, point] = set(cell.holders)
    assert fast == dict(slow)


@settings(max_examples=60)
@given(irregular_plans())
def test_every_stage_covers_its_tensors(plan: Plan) -> None:
    holders = HolderMap(plan)
    for name, spec in holders.tensors.items():
        covered = {point for box in holders.holders(name) for point in elements(box)}
        assert len(covered) == spec.num_elements


def test_shards_cut_rows_and_tensor_ranks_cut_heads() -> None:
    plan = regular_plan(make_units(1), tensor=2, shard=2, micro_batches=1)
    holders = HolderMap(plan)
    assert holders.slices("n0.g0")["block.0.wq"] == (((0, 3), (0, 3)),)
    assert holders.slices("n0.g1")["block.0.wq"] == (((6, 9), (0, 3)),)
    assert holders.slices("n0.g2")["block.0.wq"] == (((3, 6), (0, 3)),)
    assert holders.slices("n0.g2")["block.0.wo"] == (((1, 3), (0, 6)),)


def test_following_tensors_overlap_where_leaders_split_a_part() -> None:
    """6 heads over 4 ranks: 1, 2, 1, 2 of them; 3 key-value heads follow, so ranks share some."""
    plan = regular_plan(make_units(1), tensor=4, micro_batches=1)
    cells = HolderMap(plan).cells("block.0.wk")
    assert [cell.holders for cell in cells] == [
        ("n0.g0", "n0.g1"),
        ("n0.g1", "n0.g2"),
        ("n0.g3",),
    ]


def test_a_tied_tensor_is_held_by_both_ends() -> None:
    plan = regular_plan(make_units(4, tied=True), stages=4, micro_batches=4)
    (cell,) = HolderMap(plan).cells("embed.weight")
    assert cell.holders == ("n0.g0", "n0.g3")
