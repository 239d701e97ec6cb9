"""What the state of a tensor is, as data: the kinds that a worker keeps of it, each with its dtype.

Whatever keeps, moves, saves, loads or counts state reads it here, so that a new optimizer or
another precision changes this value and nothing else. The first kind is always the parameter, as
the optimizer updates it. Gradients are no state: they end with their step.
"""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.errors import HoldfastError

PARAMETER = "parameter"
WHOLE = "whole"

ELEMENT_BYTES = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
    "complex128": 16,
}


class StateKind(msgspec.Struct, frozen=True):
    """One kind of state of a tensor: shaped like it, and cut with it."""

    name: str
    dtype: str

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}"


class StateSpec(msgspec.Struct, frozen=True):
    """All that is kept of one tensor, the parameter first."""

    kinds: tuple[StateKind, ...]
    by_slice: bool = True
    """The update of a slice is the slice of the update, and state begins with zeros. Where it is
    not so, a tensor that is cut is put together for its update.
    """

    @property
    def dtype(self) -> str:
        """Of the parameter, and so of its gradient."""
        return self.kinds[0].dtype

    @property
    def element_bytes(self) -> int:
        """Of all kinds together."""
        return sum(kind.element_bytes for kind in self.kinds)

    def __str__(self) -> str:
        words = [str(kind) for kind in self.kinds]
        return " ".join(words if self.by_slice else [WHOLE, *words])


def adamw_state(dtype: str = "float32") -> StateSpec:
    """What is kept where a plan does not say: the parameter and two moments, all in one dtype."""
    names = (PARAMETER, "exp_avg", "exp_avg_sq")
    return StateSpec(tuple(StateKind(name, dtype) for name in names))


def parse_state(text: str) -> StateSpec:
    kinds: list[StateKind] = []
    words = text.split()
    is_whole = words[:1] == [WHOLE]
    for word in words[is_whole:]:
        name, _, dtype = word.partition(":")
        if not name or dtype not in ELEMENT_BYTES:
            raise HoldfastError(f"state {word!r}: expected `kind:dtype`, like exp_avg:float32")
        kinds.append(StateKind(name, dtype))
    if not kinds or kinds[0].name != PARAMETER:
        raise HoldfastError(f"state {text!r}: the first kind is {PARAMETER!r}")
    return StateSpec(tuple(kinds), by_slice=not is_whole)


def state_names(states: Iterable[StateSpec | None]) -> Mapping[StateSpec, str]:
    """A short name for each, in the order in which they come."""
    found = [state for state in dict.fromkeys(states) if state is not None]
    return {state: f"state{number}" for number, state in enumerate(found)}
