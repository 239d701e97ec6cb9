"""Parity: strips of other nodes folded into one row here, and computed back when a node is lost.

A row is encoded from this worker's own copy of the strips, piece by piece, in any order of rows and
strips but with the *first strip of a row before its others* (it is copied, which spares a pass to
clear the row). `folds` lists the pieces; the copier of state also folds: the bytes of a fold come
from the same live tensors as the worker's own entries.

The row is good only if the other holders have the same bytes. So the checksums of what was folded
are sealed with the row, and `manifest.disagreements` compares them with those the owners sealed
before the row counts as protection. When an owner is gone, the same checksums prove what was
computed from the row.
"""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from holdfast.errors import invariant
from holdfast.snapshot.layout import ArenaLayout, LayoutEntry, ParityRow


class Fold(msgspec.Struct, frozen=True):
    """All bytes of `entry`, which is saved elsewhere, go to `offset` of a row."""

    row: str
    offset: int
    entry: LayoutEntry
    is_first: bool
    """Of the row's first strip: copied instead of added."""
    clears_to: int = 0
    """The last fold of the first strip clears the row from its own end to here."""


def folds(layout: ArenaLayout) -> tuple[Fold, ...]:
    return tuple(fold for row in layout.rows for fold in _row_folds(layout, row))


def _row_folds(layout: ArenaLayout, row: ParityRow) -> Iterator[Fold]:
    for number, strip in enumerate(row.strips):
        offset = 0
        for place, entry in enumerate(strip):
            ends_first = number == 0 and place == len(strip) - 1
            clears_to = layout.by_key[row.key].num_bytes if ends_first else 0
            yield Fold(row.key, offset, entry, number == 0, clears_to)
            offset += entry.num_bytes


def fold_in(row: memoryview, fold: Fold, data: memoryview, start: int = 0) -> None:
    """Add `data`, bytes `start` and on of the fold's entry, to the row; the whole entry at once
    or in pieces.
    """
    first, stop = fold.offset + start, fold.offset + start + data.nbytes
    invariant(start + data.nbytes <= fold.entry.num_bytes, f"{fold.entry.key}: too many bytes")
    if not fold.is_first:
        xor_into(row[first:stop], data)
        return
    row[first:stop] = data
    if fold.clears_to and start + data.nbytes == fold.entry.num_bytes:
        np.frombuffer(row, np.uint8)[stop : fold.clears_to] = 0


def xor_into(target: memoryview, data: memoryview) -> None:
    """At memory speed: eight bytes at a time where both lie well, the rest byte by byte."""
    num_words = target.nbytes // 8
    ours, theirs = np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8)
    words, others = ours[: 8 * num_words].view(np.uint64), theirs[: 8 * num_words].view(np.uint64)
    np.bitwise_xor(words, others, out=words)
    np.bitwise_xor(ours[8 * num_words :], theirs[8 * num_words :], out=ours[8 * num_words :])


Read = Callable[[str, int, int], memoryview]
"""(key of an entry or row, start, stop) -> those bytes, from wherever they are."""


def decode(row: ParityRow, key: str, start: int, stop: int, read: Read) -> memoryview:
    """Bytes `start` .. `stop - 1` of the lost entry `key`, from the row and its other strips. Not
    verified: that is for the caller, who knows the checksum.
    """
    lost, offset = _place(row, key)
    first, last = offset + start, offset + stop
    result = memoryview(bytearray(read(row.key, first, last)))
    for number, strip in enumerate(row.strips):
        if number == lost:
            continue
        at = 0
        for entry in strip:
            low, high = max(first, at), min(last, at + entry.num_bytes)
            if low < high:
                xor_into(result[low - first : high - first], read(entry.key, low - at, high - at))
            at += entry.num_bytes
    return result


def _place(row: ParityRow, key: str) -> tuple[int, int]:
    """Which strip of the row an entry is in, and where."""
    for number, strip in enumerate(row.strips):
        offset = 0
        for entry in strip:
            if entry.key == key:
                return number, offset
            offset += entry.num_bytes
    raise KeyError(key)
