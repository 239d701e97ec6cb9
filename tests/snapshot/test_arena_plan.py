"""How many versions are kept, and what goes first when memory is short."""

from holdfast.plan.build import regular_plan
from holdfast.snapshot.arena_plan import SnapshotOptions, node_bytes, plan_arenas
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), replicas=3, micro_batches=3, devices_per_node=1)


def planned(limit=0, every=1, parity=True):
    return plan_arenas(
        PLAN,
        SnapshotOptions(job="j", every=every, parity=parity, memory_limit_bytes=limit),
    )


def test_every_step_needs_three_slots_and_longer_intervals_two():
    assert {layout.num_slots for layout in planned().shares.layouts} == {3}
    assert {layout.num_slots for layout in planned(every=4).shares.layouts} == {2}


def test_a_worker_alone_has_sealed_the_version_before_whenever_it_makes_one():
    alone = regular_plan(make_units(2), micro_batches=2)
    shares = plan_arenas(alone, SnapshotOptions(job="j", every=1)).shares
    assert [layout.num_slots for layout in shares.layouts] == [2]


def test_parity_goes_first_then_the_interval_grows_then_nothing_is_kept():
    sizes = [max(node_bytes(planned(parity=parity).shares).values()) for parity in (True, False)]
    assert any(layout.rows for layout in planned(sizes[0]).shares.layouts)
    assert not any(layout.rows for layout in planned(sizes[1]).shares.layouts)
    assert planned(sizes[1] - 1).every == 2
    found = planned(1)
    assert found.shares is None
    assert "1 bytes are allowed" in found.reason


def test_where_copies_are_made_one_more_is_kept():
    plan = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
    for every, num_slots in ((1, 4), (3, 3)):
        shares = plan_arenas(plan, SnapshotOptions(job="j", every=every)).shares
        assert {layout.num_slots for layout in shares.layouts} == {num_slots}
        assert {copy.num_slots for copy in shares.copies} == {2}


def test_every_worker_finds_the_same():
    assert planned() == planned()
