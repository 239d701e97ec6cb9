"""What preparation asks of a format: its parts, and the documents of one.

A part is what is done again when a preparation is broken off, so parts are small enough that little
is lost, and each can be read without the others. Parts in order give the documents in order.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.errors import HoldfastError

Content = str | NDArray[np.int64]
"""Text, or tokens that are there already."""


class Part(msgspec.Struct, frozen=True):
    file: str
    start: int
    stop: int
    """Of bytes, row groups or files: what the format counts in."""
    num_bytes: int
    """For progress."""


class Piece(NamedTuple):
    """Of a document; what is too long for one piece comes in several."""

    content: Content
    is_last: bool = True


class DocumentReader(Protocol):
    def parts(self, file: Path) -> list[Part]: ...

    def read(self, part: Part) -> Iterator[Piece]: ...


def content_of(value: Any, field: str) -> Content | None:
    """What a field holds: text, or a list of tokens; None: nothing."""
    if value is None or isinstance(value, str):
        return value or None
    is_tokens = isinstance(value, list) and all(type(token) is int for token in value)
    if not is_tokens:
        kind = f"a list with {_odd_one(value)}" if isinstance(value, list) else type(value).__name__
        raise HoldfastError(f"field {field!r} is {kind}; text, or a list of tokens, is needed")
    tokens = np.array(value, dtype=np.int64)
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < 1 << 32:
        raise HoldfastError(
            f"field {field!r} has tokens from {tokens.min()} to {tokens.max()}; they are "
            f"0 .. 2^32 - 1"
        )
    return tokens if len(tokens) else None


def _odd_one(values: list[Any]) -> str:
    return next(type(value).__name__ for value in values if type(value) is not int)


def refuse_field(place: object, field: str, known: list[str]) -> NoReturn:
    raise HoldfastError(
        f"{place} has no field {field!r}, it has {', '.join(map(repr, known)) or 'none'}: name one "
        f"of them with data.field"
    )
