"""Reading TOML values with errors that name the place and the value."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.errors import HoldfastError

T = TypeVar("T")


def toml_list(data: Mapping[str, Any], name: str) -> list[Any]:
    value = data.get(name, [])
    if not isinstance(value, list):
        raise HoldfastError(f"{name} = {value!r}: a list is needed")
    return value


def toml_text(entry: Mapping[str, Any], name: str, owner: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise HoldfastError(f"{owner}: {name} = {value!r}, a text is needed")
    return value


def refuse_unknown(data: Mapping[str, Any], known: tuple[str, ...], owner: str) -> None:
    for name in data:
        if name not in known:
            raise HoldfastError(f"{owner} has an unknown key {name!r}; known: {', '.join(known)}")


def convert(value: object, kind: type[T], owner: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise HoldfastError(f"{owner}: {error}") from None
