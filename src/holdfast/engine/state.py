"""The state of one worker: its slices of parameters, gradients and optimizer moments.

Everything is addressed by (tensor name, box), as the holder map says, whatever the plan.
Gradients are grouped by bucket: what is reduced together.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.engine.sharding import ShardedTensor
from holdfast.engine.unit_module import UnitModule, UnitPlacement
from holdfast.errors import HoldfastError, invariant
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.state import PARAMETER
from holdfast.plan.units import Box, TensorSpec, box_size
from holdfast.snapshot.layout import GRADIENT

BuildUnit = Callable[[int, UnitPlacement], UnitModule]
"""Makes the module of a unit for a place in a tensor group, parameters not filled."""


@dataclass(slots=True)
class Slice:
    """One tensor's box on this worker, in all the kinds of state that its plan gives it."""

    tensor: str
    box: Box
    parameter: nn.Parameter
    state: dict[str, Tensor]
    """What the optimizer keeps besides, by kind."""
    master: nn.Parameter | None = None
    """What the optimizer updates, where units compute with a copy of it in another dtype."""

    @property
    def updated(self) -> nn.Parameter:
        return self.parameter if self.master is None else self.master

    def refresh(self) -> None:
        """The parameter has changed: units compute with what it is now."""
        if self.master is not None:
            self.parameter.detach().copy_(self.master.detach())

    def give_gradient(self) -> None:
        """What was summed is what the optimizer uses."""
        if self.master is not None:
            self.master.grad = self.parameter.grad

    def renewed(self) -> "Slice":
        """The same values where they are, without the gradient."""
        parameter = nn.Parameter(self.parameter.detach())
        return Slice(self.tensor, self.box, parameter, self.state, self.master).prepared()

    def prepared(self) -> "Slice":
        """Gradients are summed in the dtype of what they will update."""
        sum_in(self.parameter, self.updated.dtype)
        return self

    def summed(self) -> Tensor:
        """The local sum of gradients; zeros where nothing was added."""
        return _gradient(self.parameter)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What moves when the slice moves, in this order. Gradients are not recovery state."""
        return (PARAMETER, *self.state)

    def whole(self, kind: str) -> Tensor:
        if kind == GRADIENT:
            return self.gradient
        return self.updated.detach() if kind == PARAMETER else self.state[kind]

    @property
    def gradient(self) -> Tensor:
        """As the last update got it, until the next step begins."""
        gradient = self.parameter.grad
        invariant(gradient is not None, f"{self.tensor} has no gradient")
        assert gradient is not None
        return gradient

    def part(self, kind: str, box: Box) -> Tensor:
        """A view of `box`, which must lie inside this slice's own."""
        return self.whole(kind)[local_index(self.box, box)]

    def parts(self, box: Box) -> list[Tensor]:
        """The same of every kind."""
        return [self.part(kind, box) for kind in self.kinds]


def local_index(own: Box, box: Box) -> tuple[slice, ...]:
    """`box` in the coordinates of a tensor that holds `own`."""
    for (low, high), (first, last) in zip(own, box, strict=True):
        invariant(low <= first <= last <= high, f"{box} does not lie in {own}")
    return tuple(
        slice(first - low, last - low) for (low, _), (first, last) in zip(own, box, strict=True)
    )


def num_bytes_of(parts: Iterable[Tensor]) -> int:
    return sum(part.numel() * part.element_size() for part in parts)


def pack(parts: Iterable[Tensor], out: Tensor | None = None) -> Tensor:
    """A copy of their bytes, one part behind the other; kinds differ in dtype."""
    return torch.cat([part.reshape(-1).view(torch.uint8) for part in parts], out=out)


def unpack(data: Tensor, parts: Iterable[Tensor]) -> None:
    """The way back, into the parts."""
    at = 0
    for part in parts:
        size = part.numel() * part.element_size()
        flat = data[at : at + size]
        if flat.storage_offset() % part.element_size():
            flat = flat.clone()  # bytes behind a smaller dtype do not lie as this one must
        part.copy_(flat.view(part.dtype).view(part.shape))
        at += size


class Bucket:
    """One unit's tensors on this worker, whose gradients are reduced together.

    A local sum begins with the first gradient that arrives, as autograd made it: clearing a buffer
    and adding to it would cost two passes over the memory for nothing.

    Where a shard group holds a tensor in parts, the local sum is of the whole tensor, and the slice
    gets the gradient of its rows when it has been summed over the group.
    """

    def __init__(
        self, unit: int, slices: Iterable[Slice], sharded: Iterable[ShardedTensor] = ()
    ) -> None:
        self.unit = unit
        self.slices = {piece.tensor: piece for piece in slices}
        self.sharded = {tensor.name: tensor for tensor in sharded}

    @property
    def device(self) -> torch.device:
        held = [piece.parameter for piece in self.slices.values()]
        return [*held, *(tensor.parameter for tensor in self.sharded.values())][0].device

    def gradient(self, tensor: str) -> Tensor:
        """Of the slice; zeros where nothing was added."""
        return self.slices[tensor].summed()

    def gradients(self) -> list[Tensor]:
        return [self.gradient(tensor) for tensor in self.slices]

    def local_sum(self, tensor: str, box: Box) -> Tensor:
        """What the micro-batches of this worker add to a box; zeros where none did."""
        if tensor in self.sharded:
            whole = self.sharded[tensor]
            return _gradient(whole.parameter)[local_index(whole.box, box)]
        return self.gradient(tensor)[local_index(self.slices[tensor].box, box)]

    def clear(self) -> None:
        for piece in self.slices.values():
            piece.parameter.grad = None
            piece.updated.grad = None
        self.clear_sums()

    def clear_sums(self) -> None:
        """Of tensors held in parts, whose results lie elsewhere."""
        for tensor in self.sharded.values():
            tensor.parameter.grad = None


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        dtype = _sum_dtype(parameter)
        parameter.grad = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
    return parameter.grad


def _sum_dtype(parameter: nn.Parameter) -> torch.dtype:
    found: torch.dtype = getattr(parameter, "sum_dtype", parameter.dtype)
    return found


class TensorState:
    """Units, slices and buckets of one worker under one plan."""

    def __init__(
        self,
        plan: Plan,
        worker: str,
        units: dict[int, UnitModule],
        sharded: dict[str, ShardedTensor] | None = None,
    ) -> None:
        self.plan, self.worker, self.units = plan, worker, units
        self.sharded = sharded or {}
        """Tensors that a shard group holds in parts."""
        self.slices: dict[str, Slice] = {}
        self.buckets: dict[int, Bucket] = {}

    def attach(self, slices: dict[str, Slice]) -> None:
        """Use these slices: units that share a tensor share its parameter."""
        self.slices = slices
        for piece in slices.values():
            piece.refresh()
        for unit in self.units.values():
            for name in unit.boxes:
                if name not in self.sharded:
                    unit.adopt(name, slices[name].parameter)
        for number, tensors in enumerate(HolderMap(self.plan).buckets):
            held = [slices[tensor.name] for tensor in tensors if tensor.name in slices]
            parts = [self.sharded[t.name] for t in tensors if t.name in self.sharded]
            if held or parts:
                self.buckets[number] = Bucket(number, held, parts)

    def under(self, plan: Plan) -> "TensorState":
        """The same units, slices and gradients under a plan that keeps this worker's stages."""
        same = TensorState(plan, self.worker, self.units, self.sharded)
        same.slices, same.buckets = self.slices, self.buckets
        return same

    def clear_gradients(self) -> None:
        for bucket in self.buckets.values():
            bucket.clear()

    def clear_sums(self) -> None:
        for bucket in self.buckets.values():
            bucket.clear_sums()


def build_state(
    plan: Plan, worker: str, build_unit: BuildUnit, dtype: torch.dtype, device: torch.device
) -> TensorState:
    """Modules for every unit this worker holds under the plan, without values."""
    units: dict[int, UnitModule] = {}
    sharded: dict[str, ShardedTensor] = {}
    for stage, position in plan.seats.get(worker, ()):
        rank = stage.coordinates(position).get("tensor", 0)
        place = UnitPlacement(rank, stage.tensor, dtype, device)
        for number in range(stage.first, stage.stop):
            units[number] = build_unit(number, place)
            if stage.shard > 1:
                _shard_unit(units[number], stage, position, sharded)
    return TensorState(plan, worker, units, sharded)


def _shard_unit(
    unit: UnitModule, stage: Stage, position: int, sharded: dict[str, ShardedTensor]
) -> None:
    """Let the unit compute with parameters whose memory comes and goes."""
    place = unit.place
    for spec in unit.unit.tensors:
        if spec.name not in sharded:
            ranks = range(stage.shard)
            boxes = [spec.box(place.tensor_rank, place.tensor, r, stage.shard) for r in ranks]
            own = stage.coordinates(position)["shard"]
            parameter = unit.tensors[spec.name]
            box = unit.boxes[spec.name]
            sharded[spec.name] = ShardedTensor(spec.name, box, tuple(boxes), own, parameter)
            sharded[spec.name].drop()
        unit.adopt(spec.name, sharded[spec.name].parameter)


def fresh_slices(state: TensorState) -> dict[str, Slice]:
    """The modules' own parameters, or what is held of them, with optimizer state of zeros."""
    slices: dict[str, Slice] = {}
    specs = HolderMap(state.plan).tensors
    for tensor in state.sharded.values():
        box, whole = tensor.boxes[tensor.rank], tensor.parameter
        sum_in(whole, getattr(torch, specs[tensor.name].kept(dtype_name(whole.dtype)).dtype))
        if box_size(box):
            sizes = [high - low for low, high in box]
            own = nn.Parameter(whole.data.new_empty(sizes))
            slices[tensor.name] = _fresh(tensor.name, box, own, specs[tensor.name])
    for unit in state.units.values():
        for name, parameter in unit.tensors.items():
            if name in state.sharded:
                continue
            if name not in slices:
                slices[name] = _fresh(name, unit.boxes[name], parameter, specs[name])
            invariant(
                slices[name].box == unit.boxes[name],
                f"{state.worker} holds {name} in two shapes, which is not supported",
            )
    return slices


def _fresh(name: str, box: Box, parameter: nn.Parameter, spec: TensorSpec) -> Slice:
    own, *others = spec.kept(dtype_name(parameter.dtype)).kinds
    master = None
    if own.dtype != dtype_name(parameter.dtype):
        empty = torch.empty_like(parameter, dtype=getattr(torch, own.dtype), requires_grad=False)
        master = nn.Parameter(empty)
    zeros = {
        kind.name: torch.zeros_like(
            parameter, dtype=getattr(torch, kind.dtype), requires_grad=False
        )
        for kind in others
    }
    return Slice(name, box, parameter, zeros, master).prepared()


def sum_in(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Gradients of a parameter are summed in this dtype."""
    if dtype == parameter.dtype:
        return
    if not hasattr(parameter, "grad_dtype"):
        raise HoldfastError(
            f"precision.compute needs torch 2.10 or newer, this is {torch.__version__}"
        )
    # Autograd casts nothing: it adds a gradient as it is to a sum of any dtype, in one pass over
    # the memory. Only the first of a sum is one of the parameter's dtype (`widen_sums`).
    parameter.grad_dtype = None
    parameter.sum_dtype = dtype  # type: ignore[attr-defined]


def widen_sums(parameters: Iterable[nn.Parameter]) -> None:
    """After a backward pass: a sum that has begun with it goes on in its own dtype."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.dtype != (dtype := _sum_dtype(parameter)):
            parameter.grad = gradient.to(dtype)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
