"""One unit of the model on one worker: the module that holds its boxes and computes with them.

All units are called alike, `y = unit(x, call)`, so a stage is a loop over its units. What a unit
needs besides its input (the tensor group, the targets, the numbers of the micro-batch) comes
with the call and is nowhere kept: a unit survives any change of groups as long as its boxes
stay.

**What a gradient means** (`gradient_kind`). After a backward pass a worker has, per parameter,

    own       the full gradient of its box; no other member of the tensor group holds a part of
    it same      the full gradient of an unsplit parameter, bit-equal on all members: count it
    once partial   a sum over this member's share only, for a box of which other members hold a
    part too
              (a key-value head whose query heads are on two members): where boxes overlap, add

Over replicas, and over the units that share a tensor (tied embeddings), gradients always add.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.engine.data import Documents
from holdfast.engine.random import Numbers
from holdfast.engine.tensor_parallel import LocalGroup, TensorGroup
from holdfast.errors import HoldfastError, InternalError, invariant
from holdfast.plan.units import Box, TensorSpec, Unit, intersect

GradientKind = Literal["own", "same", "partial"]

Homes = Mapping[str, tuple[tuple[nn.Module, str], ...]]
"""By the name of a tensor, the modules that have it as a parameter, and their names for it."""


@dataclass(frozen=True, slots=True)
class Call:
    """What one micro-batch brings along through the units of a stage."""

    group: TensorGroup = field(default_factory=LocalGroup)
    targets: Tensor | None = None
    """Needed by the unit that computes the loss; -100 does not count."""
    numbers: Numbers | None = None
    """Needed by units with dropout, while training."""
    documents: Documents | None = None
    """Inside which attention looks; None: a row is one."""
    compiled: bool = False
    """Units may use what was compiled for them (`compiled`)."""
    compiling: bool = False
    """They may have it compiled."""


@dataclass(frozen=True, slots=True)
class UnitPlacement:
    """Where in its tensor group a worker stands, and what its parameters are made of."""

    tensor_rank: int = 0
    tensor: int = 1
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"


class UnitModule(nn.Module):
    """Parameters are exactly the boxes of the unit's tensors for this place in the tensor group.

    They are not initialised: values come from the model's initial state, a peer or a snapshot.
    """

    entry_has_gradient: tuple[bool, ...] = (True,)
    """Of several inputs, which carry a gradient; of one, its dtype says it."""

    def __init__(self, unit: Unit, place: UnitPlacement, homes: Homes | None = None) -> None:
        super().__init__()
        rank, degree = place.tensor_rank, place.tensor
        invariant(0 <= rank < degree, f"rank {rank} is not in a tensor group of {degree}")
        self.unit = unit
        self.place = place
        self.homes = homes or {spec.name: ((self, _attribute(spec)),) for spec in unit.tensors}
        self.boxes: dict[str, Box] = {}
        self.gradient_kind: dict[str, GradientKind] = {}
        for spec in unit.tensors:
            self.boxes[spec.name] = local_box(spec, rank, degree)
            self.gradient_kind[spec.name] = gradient_kind(spec, rank, degree)
            sizes = [high - low for low, high in self.boxes[spec.name]]
            empty = torch.empty(sizes, dtype=place.dtype, device=place.device)
            self.adopt(spec.name, nn.Parameter(empty))

    @property
    def tensors(self) -> dict[str, nn.Parameter]:
        """The local parameters by their global names."""
        return {name: owner.get_parameter(key) for name, ((owner, key), *_) in self.homes.items()}

    def adopt(self, name: str, parameter: nn.Parameter) -> None:
        """Use this parameter for the tensor `name`, so that two units of a worker can share it."""
        invariant(name in self.homes, f"unit {self.unit.name!r} has no tensor {name!r}")
        sizes = tuple(high - low for low, high in self.boxes[name])
        invariant(
            tuple(parameter.shape) == sizes,
            f"{name!r} of unit {self.unit.name!r} is {sizes} here, not {tuple(parameter.shape)}",
        )
        for owner, key in self.homes[name]:
            owner.register_parameter(key, parameter)

    def check(self, call: Call) -> None:
        """A group of another size would give silently wrong sums."""
        seat = (self.place.tensor_rank, self.place.tensor)
        group = call.group
        if (group.rank, group.size) != seat:
            raise InternalError(
                f"unit {self.unit.name!r} was built for rank {seat[0]} of {seat[1]}, "
                f"the group says rank {group.rank} of {group.size}"
            )


def local_box(spec: TensorSpec, tensor_rank: int, tensor: int) -> Box:
    if spec.split is not None and spec.split.limit < tensor:
        raise HoldfastError(
            f"tensor {spec.name!r} has {spec.split.limit} parts, too few for {tensor} workers; "
            f"lower the tensor degree to {spec.split.limit}"
        )
    return spec.box(tensor_rank, tensor)


def gradient_kind(spec: TensorSpec, tensor_rank: int, tensor: int) -> GradientKind:
    """How this member's gradient relates to those of the others; see the head of this file."""
    if tensor == 1:
        return "own"
    if spec.split is None:
        return "same"
    box = spec.box(tensor_rank, tensor)
    others = (spec.box(rank, tensor) for rank in range(tensor) if rank != tensor_rank)
    return "own" if all(intersect(box, other) is None for other in others) else "partial"


def _attribute(spec: TensorSpec) -> str:
    """`wq` for `block.3.wq`."""
    return spec.name.rpartition(".")[2]
