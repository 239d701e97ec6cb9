"""Units one after the other, without a plan."""

from collections.abc import Iterable
from typing import Any

from holdfast.engine.unit_module import Call, UnitModule


def run_units(units: Iterable[UnitModule], x: Any, call: Call) -> Any:
    """A forward pass: tokens or a hidden state in, a hidden state or the loss sum out."""
    for unit in units:
        x = unit(x, call)
    return x
