"""From text to tokens: bytes, a tokenizer.json, or a directory of Hugging Face. Nothing is fetched.

A tokenizer appends its end token, if it has one, to every document and adds no others.
"""

import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from holdfast.errors import HoldfastError

BYTES = "bytes"
FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"

TokenRow = NDArray[np.int64]


class Tokenizer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def vocab(self) -> int:
        """Tokens are below it."""

    @property
    def end(self) -> int | None:
        """The token behind every document."""

    @property
    def digest(self) -> str:
        """Of all that its tokens depend on."""

    def encode(self, texts: Sequence[str]) -> list[TokenRow]:
        """Without the end token."""


class ByteTokenizer:
    """A token is a byte of UTF-8; a document ends with the zero byte, which text does not have."""

    name, vocab, end, digest = BYTES, 256, 0, BYTES

    def encode(self, texts: Sequence[str]) -> list[TokenRow]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts]


class FileTokenizer:
    """A tokenizer.json, by the package `tokenizers`."""

    def __init__(self, path: Path, end_token: str) -> None:
        try:
            tokenizers: Any = importlib.import_module("tokenizers")
        except ImportError:
            raise HoldfastError(
                f"tokenizer = '{path}' needs the package tokenizers: pip install 'holdfast[data]'"
            ) from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise HoldfastError(f"{path} is no tokenizer: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.name = str(path)
        self.vocab = 1 + max(self._tokenizer.get_vocab().values(), default=-1)
        self.end = _end_of(self._tokenizer.token_to_id, end_token, path)
        self.digest = _digest(path.read_bytes(), self.end)

    def encode(self, texts: Sequence[str]) -> list[TokenRow]:
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in found]


class DirectoryTokenizer:
    """A directory without a tokenizer.json, by `transformers`."""

    def __init__(self, path: Path, end_token: str) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched, whatever a file says
        try:
            transformers: Any = importlib.import_module("transformers")
        except ImportError:
            raise HoldfastError(
                f"tokenizer = '{path}' has no {FILE} and needs the package transformers: "
                f"pip install 'holdfast[hf]'"
            ) from None
        try:
            auto = transformers.AutoTokenizer
            self._tokenizer: Any = auto.from_pretrained(path, local_files_only=True)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise HoldfastError(f"{path} is no directory of a tokenizer: {reason}") from None
        self.name = str(path)
        self.vocab = 1 + max(self._tokenizer.get_vocab().values(), default=-1)
        self.end = _end_of(self._tokenizer.get_vocab().get, end_token, path)
        if self.end is None and not end_token:
            self.end = self._tokenizer.eos_token_id
        files = sorted(file for file in path.iterdir() if file.is_file())
        self.digest = _digest(b"".join(file.read_bytes() for file in files), self.end)

    def encode(self, texts: Sequence[str]) -> list[TokenRow]:
        return [
            np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)
            for text in texts
        ]


def load_tokenizer(given: str, end_token: str = "") -> Tokenizer:
    """`given`: "bytes", a tokenizer.json, or a directory with one."""
    if given == BYTES:
        if end_token:
            raise HoldfastError(
                f"end_token = {end_token!r} is for a tokenizer with words; bytes end with 0"
            )
        return ByteTokenizer()
    path = Path(given)
    if path.is_dir():
        return load_directory(path, end_token)
    if not path.is_file():
        raise HoldfastError(
            f"tokenizer = {given!r}: there is no such file or directory; 'bytes' needs none"
        )
    return FileTokenizer(path, end_token or configured_end(path.parent))


def load_directory(path: Path, end_token: str) -> Tokenizer:
    if (path / FILE).is_file():
        return FileTokenizer(path / FILE, end_token or configured_end(path))
    if (path / CONFIG).is_file():
        return DirectoryTokenizer(path, end_token)
    raise HoldfastError(f"tokenizer = '{path}' has neither {FILE} nor {CONFIG}")


def configured_end(folder: Path) -> str:
    """The end token that a directory of Hugging Face names; empty: none."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return ""
    found = found.get("content") if isinstance(found, dict) else found
    return found if isinstance(found, str) else ""


def _end_of(find: Any, end_token: str, path: Path) -> int | None:
    if not end_token:
        return None
    found: int | None = find(end_token)
    if found is None:
        raise HoldfastError(f"end_token = {end_token!r} is no token of {path}")
    return found


def _digest(content: bytes, end: int | None) -> str:
    return f"{xxhash.xxh3_128_hexdigest(content)}-{end}"
