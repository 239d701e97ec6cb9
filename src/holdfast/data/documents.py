"""Tokens of documents, end to end, read by number.

Whatever a source is, its documents lie behind each other in one row of tokens. `ends` says where
they end, `bounds` where one of them lies; both are looked up, not kept.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.data.token_file import TokenReader
from holdfast.errors import HoldfastError

Places = NDArray[np.int64]


class TokenDocuments(Protocol):
    @property
    def name(self) -> str:
        """For people: the file or directory."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_documents(self) -> int:
        """0: it is not known where they are."""

    def read(self, start: int, stop: int) -> Places:
        """The tokens from one place to another."""

    def bounds(self, number: int) -> tuple[int, int]:
        """Where a document begins and ends."""

    def ends(self, start: int, stop: int) -> Places:
        """The places behind the last token of a document, above `start` and up to `stop`."""


class BareTokens:
    """(TokenDocuments) A token file: a separator, if one is given, ends a document."""

    def __init__(self, tokens: TokenReader, separator: int | None = None) -> None:
        self._tokens, self._separator = tokens, separator

    @property
    def name(self) -> str:
        return str(self._tokens.path)

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    @property
    def num_documents(self) -> int:
        return 0

    def read(self, start: int, stop: int) -> Places:
        return self._tokens.read(start, stop)

    def bounds(self, number: int) -> tuple[int, int]:
        raise HoldfastError(
            f"{self.name} is a row of tokens and does not say where document {number} is: use "
            f"kind = 'tokens' or 'packed'"
        )

    def ends(self, start: int, stop: int) -> Places:
        if self._separator is None:
            return np.empty(0, dtype=np.int64)
        return start + 1 + np.flatnonzero(self.read(start, stop) == self._separator)


class IndexedTokens:
    """(TokenDocuments) Tokens, and a table of where documents begin: one entry for each, and the
    end.
    """

    def __init__(self, name: str, tokens: TokenReader, begins: NDArray[np.int64]) -> None:
        self._name, self._tokens, self._begins = name, tokens, begins

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    @property
    def num_documents(self) -> int:
        return len(self._begins) - 1

    def read(self, start: int, stop: int) -> Places:
        return self._tokens.read(start, stop)

    def bounds(self, number: int) -> tuple[int, int]:
        return int(self._begins[number]), int(self._begins[number + 1])

    def ends(self, start: int, stop: int) -> Places:
        # Keys of the table's own type: numpy would otherwise convert, and so copy, the whole table.
        keys = np.array([start, stop], dtype=np.int64)
        first, last = np.searchsorted(self._begins, keys, side="right")
        return np.asarray(self._begins[first:last], dtype=np.int64)
