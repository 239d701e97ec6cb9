"""Data sets of Megatron: NAME.bin with the tokens, NAME.idx with where they are.

    bytes 0-8     MMIDIDX and two zeros        (all numbers little-endian)
    bytes 9-16    version, 1
    byte 17       type of a token: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16
    bytes 18-25   number of sequences, s
    bytes 26-33   number of entries in the table of documents, d + 1
    then          s int32: tokens of every sequence
                  s int64: byte of NAME.bin where it begins
                  d + 1 int64: the first sequence of every document, and s

(megatron/core/datasets/indexed_dataset.py of NVIDIA/Megatron-LM; modes of sequences, which follow
in data sets of several media, are not read.) Documents are the sequences between two entries. The
builder of Megatron writes sequences without gaps, and nothing else is taken.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.data.documents import Places
from holdfast.data.token_file import TokenReader
from holdfast.errors import HoldfastError

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_CHECKED_AT_A_TIME = 1 << 20


def is_megatron(path: Path) -> bool:
    """A pair NAME.bin and NAME.idx; either file or NAME alone may be given."""
    tokens, index = megatron_pair(path)
    if not (tokens.is_file() and index.is_file()):
        return False
    with index.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def megatron_pair(path: Path) -> tuple[Path, Path]:
    base = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    return base.with_name(base.name + ".bin"), base.with_name(base.name + ".idx")


def open_megatron(path: Path, *, check: bool = False) -> "MegatronTokens":
    """`check` also reads the whole index."""
    tokens, index = megatron_pair(path)
    for file in (tokens, index):
        if not file.is_file():
            raise HoldfastError(f"{path} is no data set of Megatron: there is no {file}")
    with index.open("rb") as opened:
        header = opened.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise HoldfastError(f"{index} does not begin with MMIDIDX")
    _, version, code, num_sequences, num_entries = _HEADER.unpack(header)
    if version != 1 or code not in DTYPES:
        raise HoldfastError(
            f"{index} has version {version} and type {code}; known: version 1 with the types "
            f"{', '.join(f'{known} ({name[1:]})' for known, name in DTYPES.items())}"
        )
    dtype = np.dtype(DTYPES[code])
    _check_size(index, num_sequences, num_entries)
    lengths = _table(index, "<i4", _HEADER.size, num_sequences)
    begins = _table(index, "<i8", _HEADER.size + 4 * num_sequences, num_sequences)
    documents = _table(index, "<i8", _HEADER.size + 12 * num_sequences, num_entries)
    if check:
        _check_index(index, dtype, lengths, begins, documents)
    size = tokens.stat().st_size
    expected = int(begins[-1]) + int(lengths[-1]) * dtype.itemsize if num_sequences else 0
    if size != expected or not size:
        raise HoldfastError(f"{tokens} has {size} bytes, its index promises {expected}")
    count = size // dtype.itemsize
    return MegatronTokens(TokenReader(tokens, dtype, 0, count), begins, documents)


def _table(path: Path, dtype: str, offset: int, count: int) -> NDArray[Any]:
    if not count:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype, "r", offset=offset, shape=(count,))


def _check_size(index: Path, num_sequences: int, num_entries: int) -> None:
    size, needed = index.stat().st_size, _HEADER.size + 12 * num_sequences + 8 * num_entries
    if size < needed or num_entries < 1:
        raise HoldfastError(
            f"{index} has {size} bytes, its header promises {num_sequences} sequences and "
            f"{num_entries} entries of documents, {needed} bytes"
        )


def _check_index(
    index: Path,
    dtype: np.dtype[Any],
    lengths: NDArray[Any],
    begins: NDArray[Any],
    documents: NDArray[Any],
) -> None:
    """In pieces: an index may be larger than the memory."""
    expected = 0
    for first in range(0, len(lengths), _CHECKED_AT_A_TIME):
        piece = slice(first, first + _CHECKED_AT_A_TIME)
        ends = expected + np.cumsum(lengths[piece], dtype=np.int64) * dtype.itemsize
        shifted = np.concatenate(([expected], ends[:-1]))
        if (lengths[piece] < 0).any() or not np.array_equal(begins[piece], shifted):
            wrong = first + int(np.argmax(begins[piece] != shifted))
            raise HoldfastError(
                f"{index}: sequence {wrong} does not begin where the one before it ends: build the "
                f"data set again, or merge its parts with Megatron's tools"
            )
        expected = int(ends[-1])
    rising = all(
        (np.diff(documents[at : at + _CHECKED_AT_A_TIME + 1]) >= 0).all()
        for at in range(0, len(documents), _CHECKED_AT_A_TIME)
    )
    if documents[0] != 0 or documents[-1] != len(lengths) or not rising:
        raise HoldfastError(
            f"{index}: documents go from sequence {documents[0]} to {documents[-1]}, there are "
            f"{len(lengths)} in rising order"
        )


class MegatronTokens:
    """(TokenDocuments) Looked up in the tables of the index."""

    def __init__(
        self, tokens: TokenReader, begins: NDArray[np.int64], documents: NDArray[np.int64]
    ) -> None:
        self._tokens, self._begins, self._documents = tokens, begins, documents
        self._width = tokens.dtype.itemsize

    @property
    def name(self) -> str:
        return str(self._tokens.path)

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    @property
    def num_documents(self) -> int:
        return len(self._documents) - 1

    def read(self, start: int, stop: int) -> Places:
        return self._tokens.read(start, stop)

    def bounds(self, number: int) -> tuple[int, int]:
        first, last = (int(self._documents[entry]) for entry in (number, number + 1))
        return self._place(first), self._place(last)

    def _place(self, sequence: int) -> int:
        if sequence == len(self._begins):
            return self.num_tokens
        return int(self._begins[sequence]) // self._width

    def ends(self, start: int, stop: int) -> Places:
        # Keys of the tables' own type: numpy would otherwise convert, and so copy, a whole table.
        bytes_at = np.array([start, stop], dtype=np.int64) * self._width
        sequences = np.searchsorted(self._begins, bytes_at, side="right").astype(np.int64)
        if stop == self.num_tokens:
            sequences[1] += 1  # what begins behind the last token
        first, last = np.searchsorted(self._documents, sequences, side="left")
        found = [self._place(int(sequence)) for sequence in self._documents[first:last]]
        places = np.unique(np.array(found, dtype=np.int64))
        return places[places > start]
