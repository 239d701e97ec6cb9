"""Small arenas with known state, and others that can be waited for."""

import threading
from pathlib import Path

import torch
from torch import Tensor

from holdfast.snapshot.copying.others import Alone
from holdfast.snapshot.layout import OTHER, PARITY, ArenaLayout, LayoutEntry, ParityRow
from holdfast.snapshot.memory.arena import Arena, Version


def entry(key: str, num_bytes: int) -> LayoutEntry:
    return LayoutEntry(key, key, OTHER, ((0, num_bytes),), "uint8", num_bytes)


def make_layout(sizes: dict[str, int], chunk_bytes: int = 64) -> ArenaLayout:
    return ArenaLayout(tuple(entry(key, size) for key, size in sizes.items()), chunk_bytes)


def parity_layout(chunk_bytes: int = 16) -> ArenaLayout:
    """Own entry `a`; the row `p` protects `x` + `y` of one node and `z` of another."""
    own, row = entry("a", 40), LayoutEntry("p", "", PARITY, ((0, 50),), "uint8", 50)
    strips = ((entry("x", 20), entry("y", 30)), (entry("z", 45),))
    return ArenaLayout((own, row), chunk_bytes, rows=(ParityRow("p", strips),))


def make_arena(folder: Path, layout: ArenaLayout) -> Arena:
    return Arena.create("arena", layout, folder)


def make_state(layout: ArenaLayout, seed: int = 0) -> dict[str, Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    return {
        e.key: torch.randint(0, 256, (e.num_bytes,), generator=numbers, dtype=torch.uint8)
        for e in layout.checked
        if e.kind != PARITY
    }


def content(arena: Arena, version: Version) -> dict[str, bytes]:
    slot = arena.slot(version)
    assert slot is not None
    return {e.key: bytes(slot.bytes(e.key)) for e in arena.layout.entries}


def as_bytes(state: dict[str, Tensor]) -> dict[str, bytes]:
    return {key: bytes(tensor.numpy().tobytes()) for key, tensor in state.items()}


class Listening(Alone):
    """Alone, and remembers what was announced; answers only while `answers`."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = True
        self.announced: list[tuple[Version, bool]] = []
        self.told = threading.Event()

    def announce(self, version: Version, *, sealed: bool) -> None:
        super().announce(version, sealed=sealed)
        self.announced.append((version, sealed))
        self.told.set()

    def is_settled(self) -> bool:
        return self.answers
