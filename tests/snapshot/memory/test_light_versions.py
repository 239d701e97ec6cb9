"""The node's process: what it cannot continue, and what was damaged, it refuses."""

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.snapshot.layout import Version, chunk_checksums
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.memory.light_versions import LightVersions
from holdfast.snapshot.share import plan_shares, staging_layout
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), micro_batches=1)
LAYOUT = plan_shares(PLAN, num_slots=4).layouts[0]
V1, V2, V3 = (Version(step, 1) for step in (1, 2, 3))


def add(gradient, moments):
    for moment in moments.values():
        moment += gradient


@pytest.fixture
def node(tmp_path):
    arena = Arena.create("full", LAYOUT, tmp_path)
    staging = Arena.create("staging", staging_layout(LAYOUT), tmp_path)
    versions = LightVersions(add)

    def give(version, value):
        slot = staging.begin(version)
        for entry in staging.layout.entries:
            slot.tensor(entry.key).view(getattr(torch, entry.dtype)).fill_(value)
        size = staging.layout.chunk_bytes
        slot.seal({e.key: chunk_checksums(slot.memory(e.key), size) for e in slot.layout.entries})
        return slot

    def complete(version, before):
        versions.complete("n0.g0", tmp_path / "full", tmp_path / "staging", version, before)
        return arena.slot(version)

    yield give, complete, arena
    versions.close()
    arena.close()
    staging.close()


def values(slot, kind):
    entries = [entry for entry in LAYOUT.entries if entry.kind == kind]
    return {float(x) for e in entries for x in slot.tensor(e.key).view(torch.float32).unique()}


def test_gradients_are_applied_to_its_own_state(node):
    give, complete, _ = node
    give(V1, 1)
    complete(V1, None)
    give(V2, 2)
    slot = complete(V2, V1)
    assert values(slot, "parameter") == {2.0}
    assert values(slot, "exp_avg") == values(slot, "exp_avg_sq") == {3.0}


def test_what_it_does_not_know_cannot_be_continued(node):
    give, complete, arena = node
    give(V1, 1)
    complete(V1, None)
    give(V3, 1)
    with pytest.raises(HoldfastError, match="continues step 2"):
        complete(V3, V2)
    assert arena.slot(V3) is None


def test_damaged_bytes_are_refused_and_nothing_is_continued_from_them(node):
    give, complete, arena = node
    give(V1, 1)
    complete(V1, None)
    slot = give(V2, 2)
    slot.memory(slot.layout.entries[0].key)[0] ^= 1
    with pytest.raises(HoldfastError, match="does not fit its checksum"):
        complete(V2, V1)
    assert arena.slot(V2) is None
    give(V3, 1)
    with pytest.raises(HoldfastError, match="None is known here"):
        complete(V3, V1)


def test_what_a_killed_process_left_in_progress_is_dropped(node):
    give, complete, arena = node
    arena.begin(V1)
    give(V2, 1)
    assert complete(V2, None) is not None
    assert arena.in_progress() is None
