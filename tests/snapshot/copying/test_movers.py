"""Moving from host memory: bytes, checksums, parity, and where a copy counts."""

from itertools import count

import numpy as np
import pytest
import torch

from holdfast.snapshot.chunks import cut_chunks
from holdfast.snapshot.copying.movers import CopyJob, HostMover, flat_bytes
from holdfast.snapshot.copying.others import Alone
from holdfast.snapshot.layout import ArenaLayout, chunk_checksums
from holdfast.snapshot.memory.arena import Version
from support.snapshot_parts import (
    as_bytes,
    content,
    make_arena,
    make_layout,
    make_state,
    parity_layout,
)
from support.snapshots import encode

V = Version(3, 0)


def move_all(tmp_path, layout: ArenaLayout, chunk_bytes: int, **options):
    arena, state = make_arena(tmp_path, layout), make_state(layout)
    ticks = count()
    mover = HostMover(lambda: float(next(ticks)))
    job = CopyJob(V, cut_chunks(layout, chunk_bytes), state, **options)
    mover.prepare(job)
    assert job.open(arena, Alone())
    return arena, state, mover, job


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1000])
def test_bytes_and_checksums_are_those_of_the_state(tmp_path, chunk_bytes) -> None:
    layout = make_layout({"a": 100, "b": 3, "c": 64}, chunk_bytes=32)
    arena, state, mover, job = move_all(tmp_path, layout, chunk_bytes)
    while not job.is_copied:
        mover.move(job, None)
    assert mover.is_complete(job)
    job.slot.seal(job.checksums)
    assert content(arena, V) == as_bytes(state)
    for key, tensor in state.items():
        assert job.checksums[key] == chunk_checksums(memoryview(tensor.numpy()), 32)
    assert job.bytes_outside == 167
    assert job.seconds_outside == len(job.chunks)


@pytest.mark.parametrize("chunk_bytes", [5, 16, 1000])
def test_parity_is_what_encoding_at_once_gives(tmp_path, chunk_bytes) -> None:
    layout = parity_layout()
    arena, state, mover, job = move_all(tmp_path, layout, chunk_bytes)
    while not job.is_copied:
        mover.move(job, None)
    job.slot.seal(job.checksums)
    row = content(arena, V)["p"]
    (tmp_path / "other").mkdir()
    again = make_arena(tmp_path / "other", layout).begin(V)
    expected = encode(again, lambda e: memoryview(state[e.key].numpy()))
    assert row == bytes(again.bytes("p"))
    assert {key: job.checksums[key] for key in expected} == expected


def test_a_chunk_counts_as_inside_only_if_the_gap_outlasts_it(tmp_path) -> None:
    _, _, mover, job = move_all(tmp_path, make_layout({"a": 30}), 10)
    for answer in (True, False, True):
        mover.move(job, lambda answer=answer: answer)
    assert (job.bytes_in_gaps, job.bytes_outside) == (20, 10)
    assert (job.seconds_in_gaps, job.seconds_outside) == (2, 1)


def test_state_that_is_not_contiguous_is_packed(tmp_path) -> None:
    layout = make_layout({"a": 24})
    arena = make_arena(tmp_path, layout)
    whole = torch.arange(48, dtype=torch.uint8).view(4, 12)
    mover, job = HostMover(lambda: 0.0), CopyJob(V, cut_chunks(layout, 5), {"a": whole[:, :6]})
    mover.prepare(job)
    job.open(arena, Alone())
    while not job.is_copied:
        mover.move(job, None)
    job.slot.seal(job.checksums)
    assert content(arena, V)["a"] == whole[:, :6].contiguous().numpy().tobytes()


def test_flat_bytes_is_a_view_of_live_state() -> None:
    tensor = torch.zeros(3, dtype=torch.float32)
    flat = flat_bytes(tensor)
    tensor[0] = 1.0
    assert flat.numpy().view(np.float32)[0] == 1.0


def test_a_job_without_an_answer_has_no_slot(tmp_path) -> None:
    class Silent(Alone):
        def is_settled(self) -> bool:
            return False

    layout = make_layout({"a": 1})
    job = CopyJob(V, cut_chunks(layout, 1), make_state(layout))
    assert not job.open(make_arena(tmp_path, layout), Silent())
    assert job.slot is None
