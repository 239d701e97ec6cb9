"""Cutting: every byte once, no chunk too large, checksums in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.snapshot.chunks import cut_chunks
from holdfast.snapshot.layout import ArenaLayout
from support.snapshot_parts import make_layout, parity_layout


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 30), st.integers(1, 30))
def test_every_byte_is_in_one_piece(
    sizes: list[int], checksum_bytes: int, chunk_bytes: int
) -> None:
    layout = make_layout({f"e{n}": size for n, size in enumerate(sizes)}, checksum_bytes)
    chunks = cut_chunks(layout, chunk_bytes)
    covered: dict[str, int] = {}
    ended: dict[str, int] = {}
    for chunk in chunks:
        assert chunk.num_bytes == sum(piece.num_bytes for piece in chunk.pieces) <= chunk_bytes
        for piece in chunk.pieces:
            assert piece.start == covered.get(piece.key, 0)
            assert piece.start // checksum_bytes == (piece.stop - 1) // checksum_bytes
            assert piece.number == piece.start // checksum_bytes
            covered[piece.key] = piece.stop
            ended[piece.key] = ended.get(piece.key, 0) + piece.ends
    assert covered == {e.key: e.num_bytes for e in layout.entries}
    assert ended == {e.key: layout.num_chunks(e) for e in layout.entries}


def test_small_entries_share_a_chunk() -> None:
    chunks = cut_chunks(make_layout({"a": 10, "b": 10, "c": 10}), 25)
    assert [[piece.key for piece in chunk.pieces] for chunk in chunks] == [["a", "b"], ["c"]]


def test_what_is_folded_comes_last_and_the_row_is_closed_once() -> None:
    chunks = cut_chunks(parity_layout(), 16)
    pieces = [piece for chunk in chunks for piece in chunk.pieces]
    keys = list(dict.fromkeys(piece.key for piece in pieces))
    assert keys == ["a", "x", "y", "z"]
    assert [piece.closes for piece in pieces if piece.closes] == ["p"]
    assert pieces[-1].closes == "p"
    assert all((piece.fold is None) == (piece.key == "a") for piece in pieces)


def test_nothing_to_copy_is_refused() -> None:
    with pytest.raises(HoldfastError, match="nothing to copy"):
        cut_chunks(ArenaLayout(()), 16)
    with pytest.raises(HoldfastError, match="chunks of 0 bytes"):
        cut_chunks(make_layout({"a": 1}), 0)
