"""Rows: what a micro-batch is made of, by number.

    kind        a row is                                        it can be read from
    tokens      a window of documents end to end                anything
    packed      the same, and attention looks inside documents  what says where documents end
    documents   one document, cut to the row or filled up       what says where documents are

Windows do not overlap, but for the one token that the last of a row predicts; so every token is a
target once in an epoch, but for those of the last piece that fills no window. What is behind the
end of a document is another one's: in packed rows it is no target.
"""

from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.data.documents import TokenDocuments
from holdfast.errors import HoldfastError

RowKind = Literal["tokens", "packed", "documents"]
Truncate = Literal["end", "begin"]


class Row(NamedTuple):
    tokens: NDArray[np.int64]
    """Up to one more than the row is long: the last is only a target."""
    lengths: tuple[int, ...]
    """Of the documents in it, where attention looks only inside them; empty: it is one."""
    no_targets: tuple[int, ...]
    """Places of the row whose next token is another document's."""


class RowSource(Protocol):
    """(by number, from 0)"""

    @property
    def name(self) -> str: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    def row(self, number: int) -> Row: ...

    def lengths(self, number: int) -> tuple[int, ...]:
        """Of the documents of a row, without reading it where that can be done."""

    def describe(self) -> str:
        """How much there is, for errors."""


class Windows:
    """(RowSource) Rows of `tokens` and `packed`."""

    def __init__(self, source: TokenDocuments, seq_len: int, *, packed: bool = False) -> None:
        self._source, self._seq_len, self._packed = source, seq_len, packed

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def num_rows(self) -> int:
        return max(0, (self._source.num_tokens - 1) // self._seq_len)

    @property
    def num_tokens(self) -> int:
        return self._source.num_tokens

    def describe(self) -> str:
        return f"{self._source.num_tokens} tokens"

    def row(self, number: int) -> Row:
        at = number * self._seq_len
        tokens = self._source.read(at, at + self._seq_len + 1)
        if not self._packed:
            return Row(tokens, (), ())
        ends = self._ends(number)
        return Row(tokens, self._cut(ends), tuple(end - 1 for end in ends))

    def lengths(self, number: int) -> tuple[int, ...]:
        return self._cut(self._ends(number)) if self._packed else ()

    def _ends(self, number: int) -> list[int]:
        """Of documents, in the row."""
        at = number * self._seq_len
        ends: list[int] = (self._source.ends(at, at + self._seq_len) - at).tolist()
        return ends

    def _cut(self, ends: list[int]) -> tuple[int, ...]:
        if not ends or ends[-1] != self._seq_len:
            ends = [*ends, self._seq_len]
        return tuple(b - a for a, b in zip([0, *ends], ends, strict=False))


class DocumentRows:
    """(RowSource) A row is a document; of a longer one the first tokens, or the last."""

    def __init__(self, source: TokenDocuments, seq_len: int, *, truncate: Truncate = "end") -> None:
        if not source.num_documents:
            source.bounds(0)  # says why not
        self._source, self._seq_len, self._truncate = source, seq_len, truncate

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def num_rows(self) -> int:
        return self._source.num_documents

    @property
    def num_tokens(self) -> int:
        return self._source.num_tokens

    def describe(self) -> str:
        return f"{self._source.num_documents} documents"

    def row(self, number: int) -> Row:
        begin, end = self._source.bounds(number)
        longest = self._seq_len + 1
        if self._truncate == "begin":
            return Row(self._source.read(max(begin, end - longest), end), (), ())
        return Row(self._source.read(begin, min(end, begin + longest)), (), ())

    def lengths(self, number: int) -> tuple[int, ...]:
        return ()


def make_rows(source: TokenDocuments, kind: RowKind, seq_len: int, truncate: Truncate) -> RowSource:
    if kind == "documents":
        return DocumentRows(source, seq_len, truncate=truncate)
    return Windows(source, seq_len, packed=kind == "packed")


def check_enough(source: RowSource, needed: int, why: str) -> None:
    """A step may not have a row twice."""
    if source.num_rows < needed:
        raise HoldfastError(
            f"{source.name} has {source.describe()}, {source.num_rows} rows; {why}: lower "
            f"data.rows, data.micro_batches or data.seq_len, or give more data"
        )
