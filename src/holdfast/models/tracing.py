"""What units do with a micro-batch, found out with fake tensors: shapes without values.

Units are run one after the other, as a job runs them: what each hands on, which of it carries a
gradient, how many operations it takes, what it keeps for its backward pass, what it draws, and what
its sub-modules are called with.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from holdfast.engine.boundary import Boundary, BoundaryTensor, leaves, parts
from holdfast.engine.random import Numbers
from holdfast.engine.tensor_parallel import LoneMember
from holdfast.engine.unit_module import Call
from holdfast.errors import HoldfastError, UserCodeError

Shapes = tuple[tuple[int, ...], ...]

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
"""What code raises that asks a shape for its values."""


@dataclass
class UnitTrace:
    boundary: tuple[BoundaryTensor, ...] = ()
    """What it hands to the next unit."""
    num_operations: int = 0
    """Of its forward pass."""
    activation_bytes: int = 0
    """Kept from forward to backward."""
    random_shapes: list[tuple[int, ...]] = field(default_factory=list)
    """Of everything that it draws."""
    entries: dict[str, Shapes] = field(default_factory=dict)
    """By the path of a sub-module of the body, the shapes of the tensors that it is called with."""


@contextmanager
def shapes_only() -> Iterator[None]:
    """What is made in here has shapes and no memory, on whatever device it says it is. (The meta
    device would do, but modules ask for the kind of their device, and autocast knows none.)
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    # What fails is told by us, with the traceback of the code that did.
    log.setLevel(logging.CRITICAL)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        log.setLevel(before)


def deep_copy(module: Any, known: dict[int, Any] | None = None) -> Any:
    """Buffers keep their values, also where only shapes are made. `known`: not to be copied."""
    with unset_fake_temporarily():
        return copy.deepcopy(module, known)


class _DrawnShapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the results of operations that use a generator."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shapes = shapes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs or {}):
            first = result[0] if isinstance(result, tuple | list) else result
            self._shapes.append(tuple(first.shape))
        return result


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Fused attention counts as drawing, also where its dropout is 0."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    return "dropout_p" not in names or bool(given.get("dropout_p", 0.0))


def trace_units(
    names: Sequence[str], build: Callable[[int], Any], rows: int, length: int, tensor: int
) -> list[UnitTrace]:
    """`build` makes a ForeignUnit on the host, by its number."""
    traces: list[UnitTrace] = []
    with shapes_only():
        tokens = torch.zeros((rows, length), dtype=torch.int64)
        call = Call(LoneMember(0, tensor), torch.zeros_like(tokens), Numbers(0, 0, 0))
        entry: Boundary = tokens
        for number, name in enumerate(names):
            trace = UnitTrace()
            if traces:
                entry = leaves(entry, tuple(t.has_gradient for t in traces[-1].boundary))
            try:
                entry = _run_unit(build, number, entry, call, trace)
            except HoldfastError:
                raise
            except Exception as error:
                shapes = ", ".join(f"{part.dtype} {list(part.shape)}" for part in parts(entry))
                degree = f" with tensor {tensor}" if tensor > 1 else ""
                raise UserCodeError(
                    f"unit {name!r} fails on {shapes}{degree}: {type(error).__name__}: {error}; "
                    f"it is called with what the unit before it returns"
                ) from error
            traces.append(trace)
    if not isinstance(entry, Tensor) or entry.dim():
        shapes = ", ".join(str(list(part.shape)) for part in parts(entry))
        raise HoldfastError(
            f"the last unit returns {shapes}, and the loss is one number: the sum over all targets"
        )
    return traces


def _run_unit(
    build: Callable[[int], Any], number: int, entry: Boundary, call: Call, trace: UnitTrace
) -> Boundary:
    """On shapes alone; a unit that asks for values (routers of experts) with zeros for them."""
    try:
        return _run(build(number), entry, call, trace)
    except DATA_DEPENDENT:
        trace.random_shapes.clear()
    with unset_fake_temporarily():
        unit = build(number)
        with torch.no_grad():
            for parameter in unit.parameters():
                parameter.zero_()
        real = Call(call.group, zeros_for(call.targets), call.numbers)
        # As leaves of a graph: which of them carry a gradient is what `entry` says.
        given = tuple(zeros_for(part).requires_grad_(part.requires_grad) for part in parts(entry))
        found = _run(unit, given[0] if isinstance(entry, Tensor) else given, real, trace)
    made = tuple(torch.empty(t.shape, dtype=t.dtype) for t in trace.boundary)
    return made[0] if isinstance(found, Tensor) else made


def zeros_for(value: Any) -> Any:
    """Real zeros in the place of a tensor that is a shape alone; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    with unset_fake_temporarily():
        return torch.zeros(tuple(value.shape), dtype=value.dtype)


def _run(unit: Any, entry: Boundary, call: Call, trace: UnitTrace) -> Boundary:
    handles = [
        module.register_forward_pre_hook(_note(trace, path), with_kwargs=True)
        for path, module in unit.body.named_modules()
        if path
    ]
    buffers = {path: (b, b._version) for path, b in unit.body.named_buffers()}
    parameters = {id(parameter) for parameter in unit.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if id(tensor) not in parameters:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
        return tensor

    unit.body.prepare(entry, call)
    counter = FlopCounterMode(display=False)
    is_random, unit.is_random = unit.is_random, False
    with counter, _DrawnShapes(trace.random_shapes), saved_tensors_hooks(pack, lambda t: t):
        result: Boundary = unit(entry, call)
    unit.is_random = is_random
    for handle in handles:
        handle.remove()
    for path, (buffer, version) in buffers.items():
        if buffer._version != version:
            raise HoldfastError(
                f"unit {unit.unit.name!r} changes its buffer {path!r} in the forward pass: what is "
                f"not a parameter is not state, so another worker would compute otherwise"
            )
    trace.num_operations = counter.get_total_flops()
    trace.activation_bytes = sum(kept.values())
    trace.boundary = _describe(unit.unit.name, result)
    return result


def _note(trace: UnitTrace, path: str) -> Any:
    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        trace.entries[path] = tuple(tuple(value.shape) for value in given)

    return note


def _describe(name: str, result: object) -> tuple[BoundaryTensor, ...]:
    found = result if isinstance(result, tuple) else (result,)
    for value in found:
        if not isinstance(value, Tensor):
            raise HoldfastError(
                f"unit {name!r} returns {type(value).__name__}; units return a tensor or a tuple "
                f"of "
                f"tensors"
            )
    return tuple(BoundaryTensor(tuple(t.shape), t.dtype, t.requires_grad) for t in found)
