"""(DocumentReader) JSON lines: an object per line, one of whose fields is the document.

Files are read in ranges of bytes; a line belongs to the range that it begins in.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.data.readers.reader import Part, Piece, content_of, refuse_field
from holdfast.errors import HoldfastError

_RANGE_BYTES = 64 << 20


class JsonLinesReader:
    def __init__(self, field: str, range_bytes: int = _RANGE_BYTES) -> None:
        self._field, self._range_bytes = field, range_bytes

    def parts(self, file: Path) -> list[Part]:
        size = file.stat().st_size
        if file.suffix == ".gz":
            return [Part(str(file), 0, size, size)]
        starts = range(0, size, self._range_bytes)
        stops = [min(start + self._range_bytes, size) for start in starts]
        return [Part(str(file), a, b, b - a) for a, b in zip(starts, stops, strict=True)]

    def read(self, part: Part) -> Iterator[Piece]:
        path = Path(part.file)
        try:
            for at, line in _lines(path, part):
                if line.strip():
                    content = self._content(path, at, line)
                    if content is not None:
                        yield Piece(content)
        except (gzip.BadGzipFile, EOFError) as error:
            raise HoldfastError(f"{path} is no gzip file: {error}") from None

    def _content(self, path: Path, at: int, line: bytes) -> Any:
        try:
            found = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise HoldfastError(f"{_place(path, at)} is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise HoldfastError(
                f"{_place(path, at)} is a {type(found).__name__}; JSON lines have an object on each"
            )
        if self._field not in found:
            refuse_field(_place(path, at), self._field, list(found))
        try:
            return content_of(found[self._field], self._field)
        except HoldfastError as error:
            raise HoldfastError(f"{_place(path, at)}: {error}") from None


def _lines(path: Path, part: Part) -> Iterator[tuple[int, bytes]]:
    """(where it begins, the line)"""
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as packed:
            yield from _from(packed, 0, None)
        return
    with path.open("rb") as file:
        if part.start:
            file.seek(part.start - 1)
            file.readline()
        yield from _from(file, file.tell(), part.stop)


def _from(
    file: IO[bytes] | gzip.GzipFile, at: int, stop: int | None
) -> Iterator[tuple[int, bytes]]:
    while (stop is None or at < stop) and (line := file.readline()):
        yield at, line
        at += len(line)


def _place(path: Path, at: int) -> str:
    """`file, line 7`; only an error asks for it."""
    number = 1
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        while at > 0 and (block := file.read(min(at, 1 << 20))):
            number += block.count(b"\n")
            at -= len(block)
    return f"{path}, line {number}"
