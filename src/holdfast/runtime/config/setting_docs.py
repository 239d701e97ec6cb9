"""What every setting means, from the types themselves: key, type and range, default, and the text
below the field in the source. The reference and `holdfast init` are made from this.
"""

import ast
import inspect
import textwrap
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta

from holdfast.engine.optimizer_config import TensorGroupRule
from holdfast.runtime.config.data_sections import SourceSection
from holdfast.runtime.config.job_file import ALIASES, SECTIONS
from holdfast.runtime.faults.kinds import Fault

LISTS: dict[str, type[msgspec.Struct]] = {
    "optimizer.param_groups": TensorGroupRule,
    "data.sources": SourceSection,
    "faults": Fault,
}
"""Tables of which a job file may have several; those of [[change]] are those of [parallel]."""

_ELSEWHERE = {
    ("optimizer.param_groups", "name"): "As in [optimizer]; empty = as there.",
    ("optimizer.param_groups", "learning_rate"): "Of these tensors; empty = that of [optimizer].",
    ("optimizer.param_groups", "weight_decay"): "Of these tensors; empty = that of [optimizer].",
    ("faults", "kind"): "What is done: docs/faults.md says what each of them is.",
}
"""Meanings of what has no text below it: its name says it where it is used."""


class SettingDoc(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    kind: str
    """Type and range, in words."""
    default: str
    """As in TOML; empty: there is none, and it need not be given. `required`: it has to be."""
    meaning: str
    aliases: tuple[str, ...] = ()


def section_docs(section: str) -> list[SettingDoc]:
    """The keys of a section of the job file, in their order."""
    settings = (SECTIONS | LISTS)[section]
    meanings = field_texts(settings)
    return [
        SettingDoc(
            key=field.name,
            kind=describe_type(field.type),
            default=_default(field),
            meaning=meanings.get(field.name) or _ELSEWHERE.get((section, field.name), ""),
            aliases=tuple(a for a, ours in ALIASES.get(section, {}).items() if ours == field.name),
        )
        for field in msgspec.structs.fields(settings)
    ]


def field_texts(settings: type[msgspec.Struct]) -> dict[str, str]:
    """Field -> the text below it, in the type or the one it is made from."""
    texts: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            texts |= _own_texts(base)
    return texts


@cache
def _own_texts(settings: type[msgspec.Struct]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for node, below in zip(body.body, body.body[1:], strict=False):
        match node, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
    return texts


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    return format_value(value)


def format_value(value: Any) -> str:
    """As in TOML; empty for nothing."""
    match value:
        case None | "" | () | {} | []:
            return ""
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple() | list():
            return f"[{', '.join(map(format_value, value))}]"
        case float():
            return f"{value:g}"
    return str(value)


def describe_type(kind: Any) -> str:
    """`integer, 1 to 4096`; `"a" or "b"`; `list of text`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = next((meta for meta in arguments[1:] if isinstance(meta, Meta)), None)
        return f"{describe_type(arguments[0])}{_range(limits)}"
    if origin is Literal:
        return " or ".join(format_value(choice) for choice in arguments if choice)
    if origin in (Union, UnionType):
        return " or ".join(describe_type(part) for part in arguments if part is not NoneType)
    if origin is dict:
        return f"table of {describe_type(arguments[1])}"
    if origin in (tuple, list):
        parts = [part for part in arguments if part is not Ellipsis]
        return f"list of {describe_type(parts[0])}"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "table"
    return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(kind, "any")


def _range(limits: Meta | None) -> str:
    if limits is None:
        return ""
    low, above = limits.ge, limits.gt
    high, below = limits.le, limits.lt
    words = []
    if low is not None and high is not None:
        words.append(f"{_number(low)} to {_number(high)}")
    else:
        words += [f"from {_number(low)}"] if low is not None else []
        words += [f"above {_number(above)}"] if above is not None else []
        words += [f"to {_number(high)}"] if high is not None else []
        words += [f"below {_number(below)}"] if below is not None else []
    return f", {' '.join(words)}" if words else ""


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) >= 1e6 else f"{value}"
