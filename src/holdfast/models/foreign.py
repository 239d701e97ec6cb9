"""Models made of modules that are not ours, as the engine takes them.

A model is an ordered list of parts, each with a body: an `nn.Module` called as `body(x, call)`,
built without memory for its parameters (`without_memory`). Everything else is found out: names and
shapes from the bodies, what is tied from parameters that are the same object, costs, boundaries and
randomness by running the units on shapes alone (`tracing`). The values come from the modules' own
initialisation under the job's seed, or from files; a worker takes the boxes that it holds.

What draws random numbers (dropout) does so from torch's generators, which begin anew for every
(seed, step, micro-batch, unit), and again for a recomputation: any worker gets the same.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from holdfast.engine.boundary import Boundary, BoundaryTensor
from holdfast.engine.random import torch_seeded
from holdfast.engine.unit_module import Call, Homes, UnitModule, UnitPlacement
from holdfast.errors import HoldfastError, InternalError
from holdfast.models.styles import StyleHooks, styled_parameters, styles_in
from holdfast.models.tracing import UnitTrace, deep_copy, trace_units
from holdfast.plan.units import Box, Split, TensorSpec, Unit

_BUILDING = threading.RLock()


@contextmanager
def without_memory() -> Iterator[None]:
    """Parameters that are made in here have shapes and no values; buffers are real."""
    register, builder = nn.Module.register_parameter, threading.get_ident()

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        is_ours = threading.get_ident() == builder
        if is_ours and parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    with _BUILDING:
        nn.Module.register_parameter = register_empty  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            nn.Module.register_parameter = register  # type: ignore[method-assign]


class InitialValues(Protocol):
    """Where a model begins."""

    def read(self, tensor: str, box: Box, out: Tensor) -> None:
        """Write a box of a tensor, in the dtype of `out`."""

    def close(self) -> None:
        """All boxes that this worker wanted are read."""


class Body(nn.Module):
    """A unit's module, called as `body(x, call)`."""

    logits: str = ""
    """Path of the sub-module whose rows are the columns of the logits, where they may be cut."""
    first_column: int = 0
    """Of those, the first one that this worker has."""

    def prepare(self, x: Boundary, call: Call) -> None:
        """Make what is made once per shape, and is no work of the unit."""


def logits_module(body: nn.Module) -> str:
    """The one matrix that is cut by vocabulary; empty: there is none."""
    for path, style in styles_in(body).items():
        if style.kind == "vocabulary" and isinstance(body.get_submodule(path), nn.Linear):
            return path
    return ""


@dataclass(frozen=True)
class UnitPart:
    """One unit of a model that is not ours."""

    name: str
    body: Body
    """Without memory; copied for every unit that is built."""
    names: dict[str, str]
    """Path of a parameter in the body -> its name in the model."""
    why_whole: str = ""
    """Why it cannot be cut over a tensor group; empty: it can."""


class ForeignUnit(UnitModule):
    """A body with the boxes of one worker for parameters."""

    def __init__(
        self, unit: Unit, place: UnitPlacement, body: Body, homes: Homes, part: UnitPart
    ) -> None:
        super().__init__(unit, place, homes)
        self.body, self.hooks, self.is_random = body, StyleHooks(), False
        if place.tensor > 1:
            for path, style in styles_in(body).items():
                module = body.get_submodule(path)
                weight = part.names.get(f"{path}.weight" if path else "weight", "")
                self.hooks.install(style, module, self.boxes.get(weight, ()))
        if body.logits:
            (body.first_column, _), _ = self.boxes[part.names[f"{body.logits}.weight"]]

    def forward(self, x: Boundary, call: Call) -> Boundary:
        self.check(call)
        self.hooks.begin(call.group)
        if not (self.is_random and self.training):
            result: Boundary = self.body(x, call)
            return result
        if call.numbers is None:
            raise InternalError(f"unit {self.unit.name!r} draws, the call brings no numbers")
        with torch_seeded(call.numbers.unit(self.unit.name), torch.device(self.place.device)):
            drawn: Boundary = self.body(x, call)
            return drawn


@dataclass
class ForeignModel:
    """(Model) A list of parts."""

    parts: Sequence[UnitPart]
    values: Callable[[], InitialValues]
    vocab: int
    """Tokens are below it."""
    keeps_buffer_dtype: bool = False
    """Buffers of floats stay as they were made; else they have the dtype of the parameters."""
    origin: Any = None
    """The configuration of transformers that it was made from, if it was."""
    modules: tuple[str, ...] = ()
    """Of the library that its modules are from."""
    _opened: InitialValues | None = None
    _unfilled: set[str] = field(default_factory=set)
    _traces: dict[tuple[int, int, int, torch.dtype], list[UnitTrace]] = field(default_factory=dict)

    @cached_property
    def tensors(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """Of every unit."""
        return tuple(_specs_of(part) for part in self.parts)

    def why_whole(self, number: int) -> str:
        """Why a unit cannot be cut over a tensor group; empty: it can."""
        part = self.parts[number]
        if part.why_whole or not self.tensors[number]:
            return part.why_whole
        is_declared = bool(styles_in(part.body))
        return "" if is_declared else f"unit {part.name!r} declares no tensor styles"

    def units(self, rows: int, length: int, dtype: torch.dtype) -> tuple[Unit, ...]:
        """With what one micro-batch of this shape costs, in 10^12 operations."""
        traces = self.traces(rows, length, dtype=dtype)
        return tuple(
            Unit(
                part.name,
                self.tensors[number],
                trace.num_operations / 1e12,
                trace.num_operations / 1e12,
                trace.num_operations / 1e12,
                activation_bytes=trace.activation_bytes,
                boundary_bytes=sum(
                    _num_bytes(tensor) for tensor in trace.boundary if number < len(self.parts) - 1
                ),
            )
            for number, (part, trace) in enumerate(zip(self.parts, traces, strict=True))
        )

    def traces(
        self, rows: int, length: int, tensor: int = 1, dtype: torch.dtype = torch.float32
    ) -> list[UnitTrace]:
        """What the units do with a micro-batch of this shape, found out without computing it."""
        key = (rows, length, tensor, dtype)
        if key not in self._traces:
            place = UnitPlacement(0, tensor, dtype, "cpu")
            names = [part.name for part in self.parts]
            self._traces[key] = trace_units(
                names, lambda number: self._bare_unit(number, place), rows, length, tensor
            )
        return self._traces[key]

    def boundary(
        self, unit: int, rows: int, length: int, dtype: torch.dtype
    ) -> tuple[BoundaryTensor, ...]:
        return self.traces(rows, length, dtype=dtype)[unit].boundary

    def check_tensor(self, tensor: int) -> None:
        """What can be known of a tensor degree before anything starts."""
        for number in range(len(self.parts)):
            if why := self.why_whole(number):
                raise HoldfastError(f"tensor = {tensor}, but {why}: it runs with tensor = 1 only")
        whole, cut = self.traces(*TRACE_SHAPE), self.traces(*TRACE_SHAPE, tensor)
        for part, one, share in zip(self.parts, whole, cut, strict=True):
            if one.random_shapes != share.random_shapes:
                raise HoldfastError(
                    f"tensor = {tensor}: unit {part.name!r} draws for {share.random_shapes} "
                    f"there and "
                    f"for {one.random_shapes} with tensor = 1, so the result would depend on the "
                    f"cut; set its dropout to 0, or keep tensor = 1"
                )
            if one.boundary != share.boundary:
                raise HoldfastError(
                    f"tensor = {tensor}: unit {part.name!r} returns "
                    f"{[list(t.shape) for t in share.boundary]} there and "
                    f"{[list(t.shape) for t in one.boundary]} with tensor = 1; a row() must follow "
                    f"every column()"
                )

    def build_unit(self, number: int, place: UnitPlacement) -> UnitModule:
        unit = self._bare_unit(number, place)
        small = self.traces(*TRACE_SHAPE)
        unit.is_random = bool(small[number].random_shapes)
        if number:
            before = small[number - 1].boundary
            unit.entry_has_gradient = tuple(tensor.has_gradient for tensor in before)
        if place.tensor > 1:
            for path in self.seen_in_part(number, place.tensor):
                unit.hooks.install_partial(unit.body.get_submodule(path))
        self._unfilled.update(spec.name for spec in self.tensors[number])
        return unit

    def _bare_unit(self, number: int, place: UnitPlacement) -> ForeignUnit:
        part = self.parts[number]
        body = deep_copy(part.body)
        _move_buffers(body, place, keeps_dtype=self.keeps_buffer_dtype)
        homes: dict[str, tuple[tuple[nn.Module, str], ...]] = {}
        for path, name in part.names.items():
            owner, _, key = path.rpartition(".")
            homes[name] = (*homes.get(name, ()), (body.get_submodule(owner), key))
        unit = Unit(part.name, self.tensors[number])
        return ForeignUnit(unit, place, body, homes, part)

    def seen_in_part(self, number: int, tensor: int) -> list[str]:
        """Whole modules with parameters that see a share of the data at this degree: it shows in
        the shape of what they are called with.
        """
        whole, cut = (self.traces(*TRACE_SHAPE, degree)[number] for degree in (1, tensor))
        styles = styles_in(self.parts[number].body)
        return [
            path
            for path, shapes in whole.entries.items()
            if shapes != cut.entries[path]
            and styles.get(path) is None
            and any(True for _ in self.parts[number].body.get_submodule(path).parameters())
        ]

    def fill(self, out: Tensor, tensor: str, box: Box) -> None:
        if self._opened is None:
            self._opened = self.values()
        with torch.no_grad():
            self._opened.read(tensor, box, out)
        self._unfilled.discard(tensor)
        if not self._unfilled:
            self._opened.close()
            self._opened = None


TRACE_SHAPE = (2, 6)
"""Rows and length for what does not depend on them."""


def _num_bytes(tensor: BoundaryTensor) -> int:
    return torch.Size(tensor.shape).numel() * tensor.dtype.itemsize


def _specs_of(part: UnitPart) -> tuple[TensorSpec, ...]:
    """A unit that cannot be cut says so with tensors of one part."""
    styles = styles_in(part.body)
    is_whole = bool(part.why_whole) or not styles
    specs: dict[str, TensorSpec] = {}
    for path, parameter, split in styled_parameters(part.body, styles):
        if not parameter.requires_grad:
            raise HoldfastError(
                f"unit {part.name!r} freezes {path!r} (requires_grad is False); all parameters are "
                f"trained, so make it a buffer or leave it trainable"
            )
        if not parameter.is_floating_point():
            raise HoldfastError(f"unit {part.name!r} has {path!r} of {parameter.dtype}, not floats")
        shape = tuple(parameter.shape)
        if is_whole:
            split = Split(0, 1) if shape else None
        name = part.names[path]
        specs.setdefault(name, TensorSpec(name, shape, split))
    return tuple(specs.values())


def _move_buffers(body: nn.Module, place: UnitPlacement, *, keeps_dtype: bool) -> None:
    for module in body.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                is_cast = buffer.is_floating_point() and not keeps_dtype
                dtype = place.dtype if is_cast else buffer.dtype
                module._buffers[key] = buffer.to(place.device, dtype)


class OwnValues:
    """(InitialValues) What the modules themselves begin with, under the job's seed.

    The whole model is made once, on the host, by every worker, and dropped when its boxes are read.
    """

    def __init__(self, build: Callable[[], Sequence[UnitPart]], seed: int) -> None:
        with _BUILDING, torch.random.fork_rng([]):
            torch.manual_seed(seed)
            parts = build()
        self._values: dict[str, Any] = {
            name: part.body.get_parameter(path)
            for part in parts
            for path, name in part.names.items()
        }

    def read(self, tensor: str, box: Box, out: Tensor) -> None:
        index = tuple(slice(low, high) for low, high in box)
        out.copy_(self._values[tensor].detach()[index])

    def close(self) -> None:
        self._values.clear()
