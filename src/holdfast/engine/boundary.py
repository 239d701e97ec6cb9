"""What passes from one unit to the next: nearly always one tensor, the hidden state.

A model may hand on several (the hidden state, positions, a mask, a sum of router losses). Which of
them carry a gradient the model says, not the dtype: a mask of floats has none. Forward, all of them
travel; backward, the gradients of those that have one.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from holdfast.plan.plan import Plan

Boundary = Tensor | tuple[Tensor, ...]
"""One tensor bare; several as a tuple, and then their gradients are a tuple, too."""


class BoundaryTensor(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool = True


class HasBoundaries(Protocol):
    def boundary(
        self, unit: int, rows: int, length: int, dtype: torch.dtype
    ) -> tuple[BoundaryTensor, ...]:
        """What a unit hands to the next one, for a micro-batch of this shape."""


def parts(value: Boundary) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value


def detached(value: Boundary) -> Boundary:
    if isinstance(value, Tensor):
        return value.detach()
    return tuple(part.detach() for part in value)


def leaves(value: Boundary, has_gradient: tuple[bool, ...]) -> Boundary:
    """The same as inputs of a graph of their own. One tensor has a gradient if its dtype can."""
    if isinstance(value, Tensor):
        value = value.detach()
        return value.requires_grad_(value.is_floating_point())
    flagged = zip(value, has_gradient, strict=True)
    return tuple(part.detach().requires_grad_(flag) for part, flag in flagged)


def with_gradient(value: Boundary) -> list[Tensor]:
    return [part for part in parts(value) if part.requires_grad]


def gradients(entry: Boundary) -> Boundary | None:
    """Of a unit's inputs, after its backward pass; zeros for one that it did not use."""
    if isinstance(entry, Tensor):
        return entry.grad
    return tuple(
        torch.zeros_like(part) if part.grad is None else part.grad for part in with_gradient(entry)
    )


class PlanBoundaries:
    """Which tensors every message of a plan brings."""

    def __init__(self, model: HasBoundaries, plan: Plan, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._hops = {
            (hop.stage, number): hop for number, route in enumerate(plan.routes) for hop in route
        }

    def expect(
        self, what: str, stage: str, micro_batch: int, shape: tuple[int, int], device: torch.device
    ) -> Boundary:
        """Room for an activation (F) or gradient (B) that this stage receives."""
        hop = self._hops[stage, micro_batch]
        unit = hop.first - 1 if what == "F" else hop.stop - 1
        tensors = self._model.boundary(unit, *shape, self._dtype)
        room = tuple(
            torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            for tensor in tensors
            if what == "F" or tensor.has_gradient
        )
        return room[0] if len(tensors) == 1 else room
