"""The same promises from a device, where there is one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from holdfast.snapshot.copying.copier import Copier
from holdfast.snapshot.layout import ArenaLayout
from holdfast.snapshot.memory.arena import Version
from support.snapshot_parts import (
    Listening,
    as_bytes,
    content,
    make_arena,
    make_layout,
    make_state,
    parity_layout,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

DEADLINE_S = 20


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """CUDA registers shared memory, and no file on a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def begin(copier: Copier, others: Listening, step: int, state: dict[str, torch.Tensor]) -> None:
    """Odd versions are copied in a gap, even ones are left to `finish`."""
    others.told.clear()
    copier.begin(Version(step, 0), state)
    if step % 2:
        copier.open()
        assert others.told.wait(DEADLINE_S)


def check_device(folder: Path, layout: ArenaLayout, chunk_bytes: int) -> None:
    """Versions from gaps and from `finish`, with state that changes at once behind it."""
    device = torch.device("cuda")
    arena, others = make_arena(folder, layout), Listening()
    copier = Copier(arena, device, others, chunk_bytes=chunk_bytes)
    state = {key: tensor.to(device) for key, tensor in make_state(layout).items()}
    for step in range(1, 6):
        before = as_bytes({key: tensor.cpu() for key, tensor in state.items()})
        begin(copier, others, step, state)
        copier.finish()
        for tensor in state.values():
            tensor.add_(1)
        copier.drain()
        assert others.announced[-1] == (Version(step, 0), True)
        found = content(arena, Version(step, 0))
        assert all(found[key] == before[key] for key in found if key in before)
    copier.stop()


def test_how_long_a_device_waited_is_known(shared_folder) -> None:
    """What is copied in a gap holds nothing up; what `finish` copies does."""
    device, size = torch.device("cuda"), 2**26
    arena, others = make_arena(shared_folder, make_layout({"a": size}, 2**24)), Listening()
    copier = Copier(arena, device, others)
    state = {"a": torch.zeros(size, dtype=torch.uint8, device=device)}
    held = []
    for step in range(1, 5):
        begin(copier, others, step, state)
        copier.finish()
        copier.drain()
        torch.cuda.synchronize()
        held.append(copier.held_s())
    copier.stop()
    assert held[2] == 0 < held[3]


def test_versions_from_a_device(shared_folder) -> None:
    check_device(
        shared_folder, make_layout({"a": 5000, "b": 100, "c": 4096}, chunk_bytes=1024), 2048
    )


def test_parity_from_a_device(shared_folder) -> None:
    check_device(shared_folder, parity_layout(), 16)
