"""The token file, apart from torch: a one-dimensional `.npy` of uint16 or uint32, or a `.bin`:

    bytes 0-7     HFTOKENS
    bytes 8-11    version, 1                  (all numbers little-endian)
    bytes 12-15   bytes per token, 2 or 4
    bytes 16-23   number of tokens
    from byte 24  the tokens

A `.bin` without this header (bare uint16 numbers, say) is read when its dtype is given.
Documents follow each other without a break; a separator is a token like any other.
"""

import os
import struct
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import HoldfastError, invariant

MAGIC = b"HFTOKENS"
_HEADER = struct.Struct("<8sIIQ")
_VERSION = 1
_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


Tokens = NDArray[Any]


def write_token_file(path: str | Path, tokens: NDArray[np.integer]) -> None:
    """Write a `.bin` or `.npy` with the smallest dtype that fits; all of it or nothing."""
    path = Path(path)
    suffix = _suffix(path)
    if tokens.ndim != 1 or not len(tokens):
        raise HoldfastError(f"tokens have shape {tokens.shape}; a file takes one row of at least 1")
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= 1 << 32:
        raise HoldfastError(f"tokens run from {lowest} to {highest}; a file holds 0 .. 2^32 - 1")
    stored = tokens.astype(_DTYPES["uint16" if highest < 1 << 16 else "uint32"])
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        if suffix == ".npy":
            np.save(file, stored)
        else:
            file.write(_HEADER.pack(MAGIC, _VERSION, stored.itemsize, len(stored)))
            stored.tofile(file)
    os.replace(partial, path)


def open_token_file(path: Path, dtype: str = "") -> "TokenReader":
    """`dtype`: of a file of bare numbers."""
    tokens = _open(path, dtype or None)
    offset = tokens.offset if isinstance(tokens, np.memmap) else 0
    return TokenReader(path, tokens.dtype, offset, len(tokens))


class TokenReader:
    """A row of numbers in a file, read where it is asked for.

    Read, not mapped: of a mapping all pages that were ever touched count as memory of the process,
    and windows in shuffled order touch all of them. So a large file takes as much as a small one.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], offset: int, count: int) -> None:
        self.path, self._dtype, self._offset, self._count = path, dtype, offset, count
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)

    def __len__(self) -> int:
        return self._count

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        invariant(0 <= start <= stop <= self._count, f"{start} .. {stop} is not in {self.path}")
        width = self._dtype.itemsize
        wanted = (stop - start) * width
        found = os.pread(self._fd, wanted, self._offset + start * width)
        if len(found) < wanted:
            raise HoldfastError(
                f"{self.path} has been cut: {len(found)} of {wanted} bytes are left from token "
                f"{start} on"
            )
        return np.frombuffer(found, self._dtype).astype(np.int64)


def _open(path: Path, dtype: str | None) -> Tokens:
    if dtype is not None and dtype not in _DTYPES:
        raise HoldfastError(f"token dtype {dtype!r} is unknown; known: {', '.join(_DTYPES)}")
    if not path.is_file():
        raise HoldfastError(f"there is no token file {path}")
    if _suffix(path) == ".npy":
        return _open_npy(path)
    return _open_bin(path) if dtype is None else _open_bare(path, _DTYPES[dtype])


def _suffix(path: Path) -> str:
    if path.suffix not in (".bin", ".npy"):
        raise HoldfastError(f"token file {path} ends in {path.suffix!r}, not in .bin or .npy")
    return path.suffix


def _open_npy(path: Path) -> Tokens:
    try:
        tokens: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise HoldfastError(f"{path} is no .npy file: {error}") from None
    if tokens.ndim != 1 or tokens.dtype not in _DTYPES.values():
        raise HoldfastError(
            f"{path} holds {tokens.dtype} of shape {tokens.shape}; "
            f"a token file holds one row of uint16 or uint32"
        )
    return tokens


def _open_bin(path: Path) -> Tokens:
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise HoldfastError(
            f"{path} does not begin with {MAGIC.decode()}; for a file of bare numbers give its "
            f"dtype ({' or '.join(_DTYPES)})"
        )
    _, version, width, count = _HEADER.unpack(header)
    if version != _VERSION or width not in (2, 4):
        raise HoldfastError(
            f"{path} has version {version} and {width} bytes per token; "
            f"known: version {_VERSION} with 2 or 4 bytes"
        )
    size, expected = path.stat().st_size, _HEADER.size + width * count
    if size != expected:
        raise HoldfastError(f"{path} has {size} bytes, its header promises {expected}")
    kind = _DTYPES["uint16" if width == 2 else "uint32"]
    return np.memmap(path, kind, "r", offset=_HEADER.size, shape=(count,))


def _open_bare(path: Path, kind: np.dtype[Any]) -> Tokens:
    size = path.stat().st_size
    if size == 0 or size % kind.itemsize:
        raise HoldfastError(f"{path} has {size} bytes, no multiple of {kind.itemsize} ({kind})")
    return np.memmap(path, kind, "r")
