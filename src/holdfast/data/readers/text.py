"""(DocumentReader) Text files: a file is a document.

A long one is tokenised in pieces that are cut behind a line break, so that no more than a piece is
in memory.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from holdfast.data.readers.reader import Part, Piece
from holdfast.errors import HoldfastError

_PIECE_CHARACTERS = 1 << 20


class TextReader:
    def __init__(self, piece_characters: int = _PIECE_CHARACTERS) -> None:
        self._piece_characters = piece_characters

    def parts(self, file: Path) -> list[Part]:
        size = file.stat().st_size
        return [Part(str(file), 0, size, size)]

    def read(self, part: Part) -> Iterator[Piece]:
        path = Path(part.file)
        try:
            with open_text(path) as file:
                piece = self._next(file)
                while piece:
                    following = self._next(file)
                    yield Piece(piece, is_last=not following)
                    piece = following
        except UnicodeDecodeError as error:
            raise HoldfastError(f"{path} is no text in UTF-8: {error}") from None
        except (gzip.BadGzipFile, EOFError) as error:
            raise HoldfastError(f"{path} is no gzip file: {error}") from None

    def _next(self, file: IO[str]) -> str:
        return file.read(self._piece_characters) + file.readline(self._piece_characters)


def open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")
