"""Weights in safetensors files: any box of any tensor, read without the rest.

Files are `*.safetensors` of a directory, or one file. Names must be those of the model, none
missing and none too many; a prefix that all of them have and the model does not (or the other way
round) makes no difference.
"""

import re
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.plan.units import Box

SUFFIX = ".safetensors"


def weight_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob(f"*{SUFFIX}"))


class Weights:
    """(InitialValues) Files, opened and their names checked; nothing is read yet."""

    def __init__(
        self,
        path: Path,
        names: Collection[str],
        *,
        prefix: str = "",
        ignored: Iterable[str] = (),
        aliases: dict[str, str] | None = None,
    ) -> None:
        """`prefix` may be there or not. `ignored`: patterns of names that the model does not want.
        `aliases`: other names of tied tensors.
        """
        self._path, self._stack = path, ExitStack()
        self._files: dict[str, Any] = {}
        files = weight_files(path)
        if not files:
            raise HoldfastError(f"{path}: there are no {SUFFIX} files")
        for file in files:
            self._open(file)
        self._keys = self._match(names, prefix, list(ignored), aliases or {})

    def _open(self, file: Path) -> None:
        try:
            opened = self._stack.enter_context(safe_open(file, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise HoldfastError(f"{file} is no safetensors file: {error}") from None
        self._files.update(dict.fromkeys(opened.keys(), opened))

    def _match(
        self, names: Collection[str], prefix: str, ignored: list[str], aliases: dict[str, str]
    ) -> dict[str, str]:
        """Our name -> the name in the files."""
        keys: dict[str, str] = {}
        used: set[str] = set()
        known = set(names) | set(aliases)
        for key in self._files:
            spellings = (key, f"{prefix}.{key}", key.removeprefix(f"{prefix}."))
            name = next((spelling for spelling in spellings if spelling in known), None)
            if name is not None:
                keys.setdefault(aliases.get(name, name), key)
                used.add(key)
        missing = [name for name in names if name not in keys]
        extra = [
            key
            for key in self._files
            if key not in used and not any(re.search(pattern, key) for pattern in ignored)
        ]
        for what, listed in (("lacks", missing), ("has, beyond the model,", extra)):
            if listed:
                rest = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
                raise HoldfastError(
                    f"{self._path} {what} {listed[0]!r}{rest}; the model has {len(set(names))} "
                    f"tensors, the files {len(self._files)}: they are for another model"
                )
        return keys

    def check(self, tensor: str, shape: tuple[int, ...]) -> None:
        key = self._keys[tensor]
        found = tuple(self._files[key].get_slice(key).get_shape())
        if found != shape:
            raise HoldfastError(
                f"{self._path}: {key} is {list(found)} there, and {list(shape)} in the model"
            )

    def read(self, tensor: str, box: Box, out: Tensor) -> None:
        key = self._keys[tensor]
        index = tuple(slice(low, high) for low, high in box)
        part = self._files[key].get_slice(key)
        out.copy_(part[index] if index else self._files[key].get_tensor(key))

    def close(self) -> None:
        self._stack.close()
        self._files = {}
