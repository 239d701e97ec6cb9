"""The state of one worker: its slices of parameters, gradients and optimizer moments.

Everything is addressed by (tensor name, box), as the holder map says, whatever the plan.
Gradients are grouped by bucket: what is reduced together.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.engine.unit_module import UnitModule, UnitPlacement
from holdfast.errors import invariant
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.units import Box

BuildUnit = Callable[[int, UnitPlacement], UnitModule]
"""Makes the module of a unit for a place in a tensor group, parameters not filled."""

KINDS = ("parameter", "exp_avg", "exp_avg_sq")
"""What moves when a slice moves. Gradients are not recovery state."""


@dataclass(slots=True)
class Slice:
    """One tensor's box on this worker."""

    tensor: str
    box: Box
    parameter: nn.Parameter
    exp_avg: Tensor
    exp_avg_sq: Tensor

    def part(self, kind: str, box: Box) -> Tensor:
        """A view of `box`, which must lie inside this slice's own."""
        whole: Tensor = getattr(self, kind)
        return whole.detach()[local_index(self.box, box)]


def local_index(own: Box, box: Box) -> tuple[slice, ...]:
    """`box` in the coordinates of a tensor that holds `own`."""
    for (low, high), (first, last) in zip(own, box, strict=True):
        invariant(low <= first <= last <= high, f"{box} does not lie in {own}")
    return tuple(
        slice(first - low, last - low) for (low, _), (first, last) in zip(own, box, strict=True)
    )


class Bucket:
    """One unit's tensors on this worker, whose gradients are reduced together.

    A local sum begins with the first gradient that arrives, as autograd made it: clearing a buffer
    and adding to it would cost two passes over the memory for nothing.
    """

    def __init__(self, unit: int, slices: Iterable[Slice]) -> None:
        self.unit = unit
        self.slices = {piece.tensor: piece for piece in slices}

    def gradient(self, tensor: str) -> Tensor:
        """The local sum; zeros where no micro-batch has added anything."""
        parameter = self.slices[tensor].parameter
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def gradients(self) -> list[Tensor]:
        return [self.gradient(tensor) for tensor in self.slices]

    def clear(self) -> None:
        for piece in self.slices.values():
            piece.parameter.grad = None


class TensorState:
    """Units, slices and buckets of one worker under one plan."""

    def __init__(self, plan: Plan, worker: str, units: dict[int, UnitModule]) -> None:
        self.plan, self.worker, self.units = plan, worker, units
        self.slices: dict[str, Slice] = {}
        self.buckets: dict[int, Bucket] = {}

    def attach(self, slices: dict[str, Slice]) -> None:
        """Use these slices: units that share a tensor share its parameter."""
        self.slices = slices
        for unit in self.units.values():
            for name in unit.boxes:
                unit.adopt(name, slices[name].parameter)
        for number, tensors in enumerate(HolderMap(self.plan).buckets):
            held = [slices[tensor.name] for tensor in tensors if tensor.name in slices]
            if held:
                self.buckets[number] = Bucket(number, held)

    def under(self, plan: Plan) -> "TensorState":
        """The same units, slices and gradients under a plan that keeps this worker's stages."""
        same = TensorState(plan, self.worker, self.units)
        same.slices, same.buckets = self.slices, self.buckets
        return same

    def clear_gradients(self) -> None:
        for bucket in self.buckets.values():
            bucket.clear()


def build_state(
    plan: Plan, worker: str, build_unit: BuildUnit, dtype: torch.dtype, device: torch.device
) -> TensorState:
    """Modules for every unit this worker holds under the plan, without values."""
    units: dict[int, UnitModule] = {}
    for stage, position in plan.seats.get(worker, ()):
        rank = stage.coordinates(position).get("tensor", 0)
        place = UnitPlacement(rank, stage.tensor, dtype, device)
        for number in range(stage.first, stage.stop):
            units[number] = build_unit(number, place)
    return TensorState(plan, worker, units)


def fresh_slices(state: TensorState) -> dict[str, Slice]:
    """The modules' own parameters, with zero moments."""
    slices: dict[str, Slice] = {}
    for unit in state.units.values():
        for name, parameter in unit.tensors.items():
            if name not in slices:
                zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
                slices[name] = Slice(name, unit.boxes[name], parameter, *zeros)
            invariant(
                slices[name].box == unit.boxes[name],
                f"{state.worker} holds {name} in two shapes, which is not supported",
            )
    return slices
