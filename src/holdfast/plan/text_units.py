"""Units and tensors as text: `wk 1024x4096 0/8:32`, and runs of equal units written once."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.state import StateSpec
from holdfast.plan.text_helpers import convert, refuse_unknown, toml_text
from holdfast.plan.units import Split, TensorSpec, Unit
from holdfast.plan.workers import format_range

COSTS = ("forward", "backward_input", "backward_weight", "activation_bytes", "boundary_bytes")


StateNames = Mapping[StateSpec, str]


def format_tensor(tensor: TensorSpec, unit: str, names: StateNames) -> str:
    own = tensor.name.startswith(unit + ".")
    name = tensor.name[len(unit) + 1 :] if own else "@" + tensor.name
    words = [name, "x".join(map(str, tensor.shape)) or "scalar"]
    if tensor.split is not None:
        lead = f":{tensor.split.lead}" if tensor.split.lead else ""
        words.append(f"{tensor.split.dim}/{tensor.split.parts}{lead}")
    if tensor.state:
        words.append(f"={names[tensor.state]}")
    return " ".join(words)


_TENSOR = r"(@?)(\S+) (scalar|\d+(?:x\d+)*)(?: (\d+)/(\d+)(?::(\d+))?)?(?: =(\S+))?"


def parse_tensor(text: str, unit: str, states: Mapping[str, StateSpec]) -> TensorSpec:
    match = re.fullmatch(_TENSOR, text)
    if match is None:
        raise HoldfastError(
            f"tensor {text!r} of unit {unit!r}: expected `name shape [dim/parts[:lead]] [=state]`"
        )
    if match[7] and match[7] not in states:
        known = ", ".join(states) or "none"
        raise HoldfastError(f"tensor {text!r}: [state] has no {match[7]!r}, but {known}")
    name = match[2] if match[1] else f"{unit}.{match[2]}"
    shape = () if match[3] == "scalar" else tuple(int(size) for size in match[3].split("x"))
    split = Split(int(match[4]), int(match[5]), int(match[6] or 0)) if match[4] else None
    return TensorSpec(name, shape, split, states[match[7]] if match[7] else None)


def unit_runs(units: tuple[Unit, ...], names: StateNames) -> Iterator[tuple[str, Unit]]:
    """Runs of units `x.3 x.4 x.5` that differ only in their number, as (`x.3-5`, the first of
    them).
    """
    at = 0
    while at < len(units):
        first = units[at]
        stop = at + 1
        match = re.fullmatch(r"(.*\.)(0|[1-9]\d*)", first.name)
        while (
            match
            and stop < len(units)
            and _is_next(first, units[stop], match[1], int(match[2]) + stop - at, names)
        ):
            stop += 1
        if match and stop - at > 1:
            yield match[1] + format_range(int(match[2]), int(match[2]) + stop - at - 1), first
        else:
            yield first.name, first
        at = stop


def _is_next(first: Unit, unit: Unit, stem: str, number: int, names: StateNames) -> bool:
    if unit.name != f"{stem}{number}":
        return False
    own, others = (
        [format_tensor(tensor, each.name, names) for tensor in each.tensors]
        for each in (unit, first)
    )
    same_costs = all(getattr(unit, cost) == getattr(first, cost) for cost in COSTS)
    return same_costs and own == others


def parse_units(entry: Mapping[str, Any], states: Mapping[str, StateSpec]) -> Iterator[Unit]:
    refuse_unknown(entry, ("name", "tensors", *COSTS), "a unit")
    name = toml_text(entry, "name", "unit")
    match = re.fullmatch(r"(.*\.)(\d+)-(\d+)", name)
    numbers = range(int(match[2]), int(match[3]) + 1) if match else range(1)
    for number in numbers:
        full = f"{match[1]}{number}" if match else name
        tensors = [
            msgspec.to_builtins(parse_tensor(text, full, states))
            for text in entry.get("tensors", ())
        ]
        yield convert({**entry, "name": full, "tensors": tensors}, Unit, f"unit {full!r}")
