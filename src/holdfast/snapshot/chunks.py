"""How the state of a layout is cut for copying.

A piece is what one checksum covers, or less; a chunk is as many neighbouring pieces as are copied
without looking up. Small entries share a chunk, large ones are cut. Behind the worker's own entries
come those it folds into its parity rows, row by row.
"""

from collections.abc import Iterator

import msgspec

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import PARITY, ArenaLayout, LayoutEntry
from holdfast.snapshot.parity import Fold, folds


class ChunkPiece(msgspec.Struct, frozen=True):
    """Bytes `start` .. `stop - 1` of an entry."""

    key: str
    number: int
    """Of the checksum that covers it."""
    start: int
    stop: int
    ends: bool
    """Is it the last piece of its checksum?"""
    fold: Fold | None = None
    """If given, the bytes are added to a parity row; they are saved elsewhere."""
    closes: str = ""
    """The row that is complete with this piece."""

    @property
    def num_bytes(self) -> int:
        return self.stop - self.start


class Chunk(msgspec.Struct, frozen=True):
    pieces: tuple[ChunkPiece, ...]
    num_bytes: int


def cut_chunks(layout: ArenaLayout, chunk_bytes: int) -> tuple[Chunk, ...]:
    """Everything that has to be read for a version, once and in order."""
    if chunk_bytes < 1:
        raise HoldfastError(f"chunks of {chunk_bytes} bytes: at least 1 needed")
    chunks: list[Chunk] = []
    open_pieces: list[ChunkPiece] = []
    size = 0
    for piece in _all_pieces(layout, chunk_bytes):
        if open_pieces and size + piece.num_bytes > chunk_bytes:
            chunks.append(Chunk(tuple(open_pieces), size))
            open_pieces, size = [], 0
        open_pieces.append(piece)
        size += piece.num_bytes
    if not open_pieces:
        raise HoldfastError("the layout has no state: there is nothing to copy")
    chunks.append(Chunk(tuple(open_pieces), size))
    return tuple(chunks)


def _all_pieces(layout: ArenaLayout, chunk_bytes: int) -> Iterator[ChunkPiece]:
    for entry in layout.entries:
        if entry.kind != PARITY:
            yield from _pieces(entry, layout.chunk_bytes, chunk_bytes)
    all_folds = folds(layout)
    last = {fold.row: fold for fold in all_folds}
    for fold in all_folds:
        for piece in _pieces(fold.entry, layout.chunk_bytes, chunk_bytes):
            closes = fold.row if fold is last[fold.row] else ""
            is_last = piece.stop == fold.entry.num_bytes
            yield msgspec.structs.replace(piece, fold=fold, closes=closes if is_last else "")


def _pieces(entry: LayoutEntry, checksum_bytes: int, chunk_bytes: int) -> Iterator[ChunkPiece]:
    for number, first in enumerate(range(0, entry.num_bytes, checksum_bytes)):
        last = min(first + checksum_bytes, entry.num_bytes)
        for start in range(first, last, chunk_bytes):
            stop = min(start + chunk_bytes, last)
            yield ChunkPiece(entry.key, number, start, stop, stop == last)
