"""Any one node of a column may be lost; its strips come back bit for bit."""

import os
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.units import TensorSpec, Unit
from holdfast.snapshot.layout import OTHER, PARITY, chunk_checksums
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.parity import decode, fold_in, folds, xor_into
from holdfast.snapshot.share import plan_shares
from support.snapshots import encode


def state_of(layouts):
    """Bytes for every entry: what all its holders have on their devices."""
    return {
        entry.key: os.urandom(entry.num_bytes)
        for layout in layouts
        for entry in layout.entries
        if entry.kind not in (PARITY, OTHER)
    }


def save(layout, state, folder):
    arena = Arena.create(layout.worker, layout, folder)
    slot = arena.begin(Version(1, 0))
    for key in layout.by_key:
        if key in state:
            slot.bytes(key)[:] = state[key]
    checksums = encode(slot, lambda entry: memoryview(state[entry.key]))
    for entry in layout.entries:
        checksums.setdefault(entry.key, chunk_checksums(slot.bytes(entry.key), layout.chunk_bytes))
    slot.seal(checksums)
    return arena


@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
def test_any_lost_node_is_computed_back(replicas, tmp_path):
    units = (Unit("u", (TensorSpec("w", (57, 3)), TensorSpec("v", (11,)))),)
    plan = regular_plan(units, replicas=replicas, micro_batches=replicas, devices_per_node=1)
    layouts = plan_shares(plan, chunk_bytes=64).layouts
    state = state_of(layouts)
    arenas = {layout.worker: save(layout, state, tmp_path) for layout in layouts}
    for lost in layouts:
        kept = {w: arena.newest() for w, arena in arenas.items() if w != lost.worker}
        rows = {
            entry.key: (worker, row)
            for worker, slot in kept.items()
            for row in slot.layout.rows
            for strip in row.strips
            for entry in strip
        }

        def read(key, start, stop, kept=kept):
            slot = next(s for s in kept.values() if key in s.layout.by_key)
            return slot.bytes(key)[start:stop]

        entries = [entry for entry in lost.entries if entry.key in state]
        for entry in entries:
            worker, row = rows[entry.key]
            found = decode(row, entry.key, 0, entry.num_bytes, read)
            assert found == state[entry.key]
            assert chunk_checksums(found, 64) == kept[worker].checksums()[entry.key]
            middle = decode(row, entry.key, 4, entry.num_bytes, read)
            assert middle == state[entry.key][4:]
    for arena in arenas.values():
        arena.close()


@settings(max_examples=40, deadline=None)
@given(data=st.data(), replicas=st.integers(2, 4))
def test_folding_in_pieces_is_folding_at_once(data, replicas, tmp_path_factory):
    units = (Unit("u", (TensorSpec("w", (23, 3)), TensorSpec("v", (5,)))),)
    plan = regular_plan(units, replicas=replicas, micro_batches=replicas, devices_per_node=1)
    layout = plan_shares(plan).layouts[data.draw(st.integers(0, replicas - 1))]
    state = state_of(plan_shares(plan).layouts)
    arena = save(layout, state, tmp_path_factory.mktemp("parity"))
    slot = arena.newest()
    size = layout.by_key[layout.rows[0].key].num_bytes
    row = memoryview(bytearray(os.urandom(size)))
    for fold in folds(layout):
        whole = memoryview(state[fold.entry.key])
        cuts = data.draw(st.sets(st.integers(1, max(1, whole.nbytes - 1)), max_size=3))
        bounds = [0, *sorted(cut for cut in cuts if cut < whole.nbytes), whole.nbytes]
        for start, stop in pairwise(bounds):
            fold_in(row, fold, whole[start:stop], start)
    assert row == slot.bytes(layout.rows[0].key)
    arena.close()


@given(st.binary(max_size=100), st.integers(0, 7), st.integers(0, 7))
def test_xor_whatever_the_alignment(data, left, right):
    other = bytes(reversed(data))
    target = memoryview(bytearray(b"x" * left + data))[left:]
    xor_into(target, memoryview(b"y" * right + other)[right:])
    assert bytes(target) == bytes(a ^ b for a, b in zip(data, other, strict=True))


def test_xor_is_no_slower_than_a_few_copies():
    """At memory speed, against a plain copy of the same bytes on the same machine."""
    size = 2**24
    target, data = memoryview(bytearray(size)), memoryview(bytes(size))

    def fastest(action):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            action()
            times.append(time.perf_counter() - begin)
        return min(times)

    copy = fastest(lambda: np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, "u1")))
    assert fastest(lambda: xor_into(target, data)) < 10 * copy
