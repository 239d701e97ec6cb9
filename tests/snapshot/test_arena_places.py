"""What is planned is what is taken."""

import os

from holdfast.plan.build import regular_plan
from holdfast.plan.units import TensorSpec, Unit
from holdfast.snapshot.arena_places import PAGE_BYTES, ArenaPlaces, arena_bytes
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.share import plan_shares

PLAN = regular_plan(
    (Unit("u", (TensorSpec("w", (4096, 64)),)),), replicas=3, micro_batches=3, devices_per_node=1
)
LAYOUT = plan_shares(PLAN, num_slots=3).layouts[0]


def test_the_file_is_as_large_as_planned(tmp_path):
    arena = Arena.create("a", LAYOUT, tmp_path)
    assert os.fstat(arena.fd).st_size == arena_bytes(LAYOUT)
    arena.close()


def test_nothing_overlaps_and_slots_begin_at_pages():
    places = ArenaPlaces.of(LAYOUT)
    starts = [*places.heads, *places.slots]
    assert starts == sorted(set(starts))
    assert all(start % PAGE_BYTES == 0 for start in starts)
    assert places.num_bytes - places.slots[-1] >= LAYOUT.slot_bytes
    steps = {
        later - earlier for earlier, later in zip(places.slots, places.slots[1:], strict=False)
    }
    assert min(steps) >= LAYOUT.slot_bytes
