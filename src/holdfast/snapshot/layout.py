"""What one worker's arena holds: entries, where they lie in a slot, and how they are checked.

An entry is one kind of state (the parameter, a moment, other) of one box of one tensor,
under a key that is the same on every worker. A parity row is an entry too; it stands for entries
of *other* workers, which are not stored here but whose checksums are: they are what proves, when
their owner is gone, that the bytes computed from the parity are the bytes it had.

A layout is stored in its arena and describes itself: a process that finds the memory needs
neither the plan nor the model to read it.
"""

from functools import cached_property
from math import ceil

import msgspec
import xxhash

from holdfast.errors import HoldfastError
from holdfast.plan.state import PARAMETER
from holdfast.plan.units import Box
from holdfast.plan.workers import node_of

OTHER = "other"
GRADIENT = "gradient"
"""Reduced and scaled, as the last update got it: only in what is staged (`is_staging`)."""
PARITY = "parity"
"""Entries of these kinds belong to no slice; all others are state of one."""

CHUNK_BYTES = 16 * 2**20
"""A checksum covers this much: what is copied at once, and lost at once."""

MAX_SLOTS = 5
ALIGNMENT = 256
"""Of every entry; enough for any dtype and for copies from a device."""


class Version(msgspec.Struct, frozen=True, order=True):
    """State entering `step`, and the epoch that agreed on the step before it. Where two epochs
    agreed on a step, there are two states, which are never used together.
    """

    step: int
    agreed_in: int

    @property
    def age(self) -> tuple[int, int]:
        """Larger is newer. Epochs are numbered in the order of history and a rollback begins a
        new one, so a later epoch is newer even where its step is lower.
        """
        return self.agreed_in, self.step

    def __str__(self) -> str:
        return f"step {self.step} (epoch {self.agreed_in})"


class LayoutEntry(msgspec.Struct, frozen=True):
    key: str
    tensor: str
    kind: str
    box: Box
    dtype: str
    num_bytes: int


class ParityRow(msgspec.Struct, frozen=True):
    """The entry `key` is the XOR of these strips, each the concatenation of its entries, the
    shorter ones continued with zeros. Every strip is of another node.
    """

    key: str
    strips: tuple[tuple[LayoutEntry, ...], ...]


class Whole(msgspec.Struct, frozen=True):
    """A tensor of the model: together the entries of a complete version cover all of these."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    kinds: tuple[str, ...] = (PARAMETER,)


class ArenaLayout(msgspec.Struct, frozen=True, dict=True):
    entries: tuple[LayoutEntry, ...]
    chunk_bytes: int = CHUNK_BYTES
    worker: str = ""
    node: str = ""
    plan: str = ""
    """Digest of the text of the plan under which the state was held."""
    rows: tuple[ParityRow, ...] = ()
    tensors: tuple[Whole, ...] = ()
    num_slots: int = 2
    """Two where versions are apart, three where every step is kept, one more where a version stays
    until another node has copied the next, and where versions are light (`arena_plan`).
    """

    @property
    def is_copy(self) -> bool:
        """Kept by a node for a worker of another one."""
        return self.node not in ("", node_of(self.worker))

    @cached_property
    def is_staging(self) -> bool:
        """Not a version, but what a process of the node makes one from."""
        return any(entry.kind == GRADIENT for entry in self.entries)

    @cached_property
    def by_key(self) -> dict[str, LayoutEntry]:
        return {entry.key: entry for entry in self.entries}

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each entry begins inside a slot."""
        offsets: dict[str, int] = {}
        end = 0
        for entry in self.entries:
            offsets[entry.key] = end
            end += round_up(entry.num_bytes, ALIGNMENT)
        return offsets

    @cached_property
    def slot_bytes(self) -> int:
        return sum(round_up(entry.num_bytes, ALIGNMENT) for entry in self.entries)

    @cached_property
    def checked(self) -> tuple[LayoutEntry, ...]:
        """Everything that has checksums: the entries, then those the parity rows stand for."""
        covered = (entry for row in self.rows for strip in row.strips for entry in strip)
        return (*self.entries, *covered)

    @cached_property
    def num_checksums(self) -> int:
        return sum(self.num_chunks(entry) for entry in self.checked)

    def num_chunks(self, entry: LayoutEntry) -> int:
        return ceil(entry.num_bytes / self.chunk_bytes)

    def check(self) -> None:
        """Refuse a layout that contradicts itself."""
        if self.chunk_bytes < 1:
            raise HoldfastError(f"chunks of {self.chunk_bytes} bytes: at least 1 needed")
        if not 2 <= self.num_slots <= MAX_SLOTS:
            raise HoldfastError(f"an arena has 2 to {MAX_SLOTS} slots, not {self.num_slots}")
        seen: set[str] = set()
        for entry in self.checked:
            if entry.key in seen:
                raise HoldfastError(f"two entries of {self.worker or 'a layout'} are {entry.key!r}")
            seen.add(entry.key)
            if entry.num_bytes < 0:
                raise HoldfastError(f"{entry.key!r} has {entry.num_bytes} bytes")
        for row in self.rows:
            if self.by_key.get(row.key) is None or self.by_key[row.key].kind != PARITY:
                raise HoldfastError(f"the parity row {row.key!r} has no entry to be stored in")

    @cached_property
    def digest(self) -> int:
        return xxhash.xxh3_64_intdigest(msgspec.json.encode(self))


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def entry_key(tensor: str, box: Box, kind: str) -> str:
    bounds = ",".join(f"{low}:{high}" for low, high in box)
    return f"{tensor}|{bounds}|{kind}"


def chunk_checksums(data: memoryview, chunk_bytes: int) -> list[int]:
    """xxh3 of every chunk of a flat byte view."""
    return [
        xxhash.xxh3_64_intdigest(data[start : start + chunk_bytes])
        for start in range(0, data.nbytes, chunk_bytes)
    ]
