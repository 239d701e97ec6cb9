"""What of the protection can be had, and what is said where it cannot."""

import msgspec
import pytest

from holdfast.plan.build import regular_plan
from holdfast.snapshot.arena_plan import SnapshotOptions, arena_choices, node_bytes, plan_arenas
from holdfast.snapshot.provision import (
    ROOM,
    AskedProtection,
    MemoryPlace,
    checkpoint_bytes,
    in_mb,
    provide,
)
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), replicas=3, micro_batches=3, devices_per_node=1)
OPTIONS = SnapshotOptions(job="j")
NODE_BYTES = [max(node_bytes(c.shares).values()) for c in arena_choices(PLAN, OPTIONS)]
ALL_BYTES = [sum(node_bytes(c.shares).values()) for c in arena_choices(PLAN, OPTIONS)]
CHECKPOINT = checkpoint_bytes(PLAN, "float32")
PLENTY = 10**12


def asked(limit=0, every=1, steps=0, seconds=600.0, keep=2):
    options = msgspec.structs.replace(OPTIONS, every=every, memory_limit_bytes=limit)
    return AskedProtection(
        options=options, persist_every_steps=steps, persist_every_s=seconds, keep_latest_k=keep
    )


def provided(shm=PLENTY, disk=PLENTY, plans=(PLAN,), **given):
    run_disk = MemoryPlace("runs/a", disk, is_disk=True)
    places = [MemoryPlace("/dev/shm", shm), MemoryPlace("runs/a/memory", disk, is_disk=True)]
    return provide(plans, asked(**given), places, run_disk)


def test_with_room_for_everything_there_is_nothing_to_say():
    found = provided()
    assert (found.every, found.place.path, found.keep_latest_k) == (1, "/dev/shm", 2)
    assert (found.lacking, found.notes) == ((), ())
    assert found.summary == (
        f"snapshots of every step in /dev/shm (3 versions, with parity, {in_mb(ALL_BYTES[0])}); "
        f"checkpoints every 600 s and at the end"
    )


def test_little_shared_memory_is_replaced_by_the_disk_and_its_cost_is_said():
    found = provided(shm=ROOM * ALL_BYTES[0] - 1)
    assert found.place.path == "runs/a/memory"
    assert found.lacking == ()
    (line,) = found.notes
    assert line.startswith(f"/dev/shm has {in_mb(ROOM * ALL_BYTES[0] - 1)} free, and snapshots")
    assert f"need {in_mb(ROOM * ALL_BYTES[0])}: they lie in runs/a/memory, where each" in line
    assert f"costs {in_mb(ALL_BYTES[0] // 3)} of writing to disk; make room for" in line


def test_with_little_room_anywhere_less_is_kept():
    found = provided(shm=ROOM * ALL_BYTES[1], disk=0)
    assert found.place.path == "/dev/shm"
    line = found.lacking[0]
    assert "3 versions, without parity, every 1 instead" in line
    assert in_mb(ROOM * ALL_BYTES[0]) in line
    # All processes come to the same.
    options = msgspec.structs.replace(OPTIONS, memory_limit_bytes=found.memory_limit_bytes)
    assert not any(layout.rows for layout in plan_arenas(PLAN, options).shares.layouts)


def test_with_no_room_there_are_no_snapshots():
    found = provided(shm=1000, disk=2000)
    assert (found.every, found.place) == (0, None)
    (line,) = found.lacking
    assert line.startswith("/dev/shm has 0.0 MB free and runs/a/memory has 0.0 MB free")
    assert "no snapshots and no checkpoints; make room for" in line


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_limit_that_is_too_low_names_what_would_do(rank):
    limit = NODE_BYTES[rank]
    found = provided(limit=limit)
    (line,) = found.lacking
    assert f"snapshot.memory_limit_bytes = {limit}, and" in line
    assert line.endswith(f"raise it to {NODE_BYTES[0]}")
    assert found.every == (1 if rank == 1 else 2)
    assert found.memory_limit_bytes == limit
    assert provided(limit=NODE_BYTES[0]).lacking == ()


def test_a_limit_that_nothing_fits():
    (line,) = provided(limit=1).lacking
    assert f"takes {NODE_BYTES[-1]} on a node: no snapshots and no checkpoints; raise it" in line


def test_checkpoints_without_snapshots():
    (line,) = provided(every=0, steps=5).lacking
    assert line.startswith("snapshot.persist_every_steps = 5, but snapshot.every = 0")
    assert provided(every=0).lacking == ()  # nothing was asked for


@pytest.mark.parametrize(
    ("room", "kept", "lacking", "notes"),
    [
        (3, 2, "", ""),
        (2, 1, "", "1 kept instead of 2"),
        (1, 2, "only one fits", ""),
        (0, 2, "none fits", ""),
    ],
)
def test_room_for_checkpoints(room, kept, lacking, notes):
    found = provided(disk=room * CHECKPOINT)
    assert found.keep_latest_k == kept
    assert lacking in " ".join(found.lacking)
    assert notes in " ".join(found.notes)
    assert bool(lacking) == bool(found.lacking)
    assert bool(notes) == bool(found.notes)
    assert provided(disk=room * CHECKPOINT, seconds=0.0).lacking == ()


def test_snapshots_on_disk_take_room_from_checkpoints():
    found = provided(shm=0, disk=ROOM * ALL_BYTES[0] + CHECKPOINT)
    assert found.place.is_disk
    assert "only one fits" in found.lacking[0]


def test_the_largest_of_several_plans_counts():
    alone = regular_plan(make_units(2), micro_batches=3, devices_per_node=1)
    assert provided(plans=(PLAN, alone)).summary == provided().summary
