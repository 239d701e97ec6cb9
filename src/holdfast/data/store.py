"""The token store: what a source is prepared into, a directory of three files.

    tokens.bin      a token file (`token_file.py`), documents end to end, each with its end token
    documents.bin   int64 numbers: where every document begins, and the end
    store.json      how many there are, and of which tokenizer; written last

`write_part` writes the tokens of one part; `join_parts` makes a store of them.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from holdfast.data.documents import IndexedTokens
from holdfast.data.token_file import MAGIC, open_token_file
from holdfast.errors import HoldfastError

STORE = "store.json"
TOKENS = "tokens.bin"
DOCUMENTS = "documents.bin"
VERSION = 1
_COPIED_BYTES = 16 << 20


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """(store.json)"""

    version: int = VERSION
    key: str
    """Of the content: the same inputs and the same tokenizer have the same."""
    tokenizer: str
    """Empty: the source had tokens already."""
    vocab: int
    """Tokens are below it."""
    end: int | None
    """The token behind every document."""
    width: int
    """Bytes of a token."""
    num_documents: int
    num_tokens: int
    num_empty: int = 0
    """Documents without text, which were left out."""


class PartInfo(msgspec.Struct, frozen=True):
    num_documents: int
    num_tokens: int
    num_empty: int
    highest: int
    """The largest token."""


def read_info(folder: Path) -> StoreInfo:
    path = folder / STORE
    try:
        info = msgspec.json.decode(path.read_bytes(), type=StoreInfo)
    except FileNotFoundError:
        raise HoldfastError(f"{folder} holds no prepared tokens: there is no {STORE}") from None
    except msgspec.DecodeError as error:
        raise HoldfastError(f"{path} does not say what a store is: {error}") from None
    if info.version != VERSION:
        raise HoldfastError(f"{path} has version {info.version}, known is {VERSION}: prepare again")
    return info


def open_store(folder: Path, name: str = "") -> IndexedTokens:
    """`name`: for people, instead of the folder."""
    info = read_info(folder)
    tokens = open_token_file(folder / TOKENS)
    size, expected = (folder / DOCUMENTS).stat().st_size, 8 * (info.num_documents + 1)
    if size != expected or len(tokens) != info.num_tokens:
        raise HoldfastError(
            f"{folder} has {len(tokens)} tokens and {size} bytes of documents, its {STORE} "
            f"promises {info.num_tokens} and {expected}: remove it and prepare again"
        )
    begins = np.memmap(folder / DOCUMENTS, "<i8", "r", shape=(info.num_documents + 1,))
    return IndexedTokens(name or str(folder), tokens, begins)


# Parts.


def part_names(folder: Path, number: int) -> tuple[Path, Path, Path]:
    """Its tokens, where its documents end, and what is in it."""
    base = f"part-{number:06d}"
    return folder / f"{base}.tokens", folder / f"{base}.ends", folder / f"{base}.json"


def part_info(folder: Path, number: int) -> PartInfo | None:
    """None: it is not complete."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(part_names(folder, number)[2].read_bytes(), type=PartInfo)
    return None


class PartWriter:
    """Documents of one part; it counts when `close` is done."""

    def __init__(self, folder: Path, number: int, width: int, end: int | None) -> None:
        self._tokens_path, self._ends_path, self._info_path = part_names(folder, number)
        self._tokens: IO[bytes] = self._tokens_path.open("wb")
        self._dtype, self._end = np.dtype("<u2" if width == 2 else "<u4"), end
        self._ends: list[int] = []
        self._count = self._begun = self._num_empty = 0
        self._highest = -1

    def add(self, tokens: Any, *, is_last: bool) -> None:
        if len(tokens):
            self._highest = max(self._highest, int(tokens.max()))
            self._put(tokens)
        if is_last:
            self._close_document()

    def _put(self, tokens: Any) -> None:
        self._tokens.write(tokens.astype(self._dtype).tobytes())
        self._count += len(tokens)

    def _close_document(self) -> None:
        if self._count == self._begun:
            self._num_empty += 1
            return
        if self._end is not None:
            self._put(np.array([self._end]))
            self._highest = max(self._highest, self._end)
        self._ends.append(self._count)
        self._begun = self._count

    @property
    def num_tokens(self) -> int:
        return self._count

    def close(self) -> PartInfo:
        sync_and_close(self._tokens)
        with self._ends_path.open("wb") as ends:
            ends.write(np.array(self._ends, dtype="<i8").tobytes())
            sync_and_close(ends)
        info = PartInfo(len(self._ends), self._count, self._num_empty, self._highest)
        write_whole(self._info_path, msgspec.json.encode(info))
        return info

    def give_up(self) -> None:
        self._tokens.close()


def join_parts(folder: Path, parts: Sequence[PartInfo], width: int) -> None:
    """tokens.bin and documents.bin, of all parts in their order."""
    names = [part_names(folder, number) for number in range(len(parts))]
    count = sum(part.num_tokens for part in parts)
    with (folder / TOKENS).open("wb") as tokens:
        tokens.write(struct.pack("<8sIIQ", MAGIC, 1, width, count))
        _append(tokens, (tokens_path for tokens_path, _, _ in names))
        sync_and_close(tokens)
    with (folder / DOCUMENTS).open("wb") as documents:
        documents.write(np.zeros(1, dtype="<i8").tobytes())
        at = 0
        for part, (_, ends_path, _) in zip(parts, names, strict=True):
            documents.write((np.fromfile(ends_path, dtype="<i8") + at).tobytes())
            at += part.num_tokens
        sync_and_close(documents)


def _append(target: IO[bytes], paths: Iterable[Path]) -> None:
    for path in paths:
        with path.open("rb") as source:
            while block := source.read(_COPIED_BYTES):
                target.write(block)


# Files that are whole or not there.


def write_whole(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with partial.open("wb") as file:
        file.write(content)
        sync_and_close(file)
    os.replace(partial, path)


def sync_and_close(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
