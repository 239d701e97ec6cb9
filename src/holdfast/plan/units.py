"""The model as the planner sees it: an ordered list of units, and the tensors of each.

A tensor knows where it may be cut along the tensor axis. A cut is by *parts*: 32 attention heads
are 32 parts of `wq` along dimension 0, and degree 3 gives 10, 11 and 11 of them to the three
ranks. Where a tensor has fewer parts than the one it follows (8 key-value heads under 32 query
heads) it names the leader's count, and each rank gets every part that its share of the leader
touches: neighbouring ranks may then both hold a part.
"""

from collections.abc import Callable
from math import prod

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.state import StateSpec, adamw_state

Box = tuple[tuple[int, int], ...]
"""A rectangular piece of a tensor: (low, high) per dimension, high excluded."""


class Split(msgspec.Struct, frozen=True):
    """`dim` may be cut into `parts` equal parts; `lead` is the part count of the tensor it
    follows (0: itself).
    """

    dim: int
    parts: int
    lead: int = 0

    @property
    def limit(self) -> int:
        """The largest tensor degree at which every rank still gets something of its own to lead."""
        return self.lead or self.parts

    def part_range(self, rank: int, degree: int) -> tuple[int, int]:
        lead = self.limit
        low, high = share(lead, rank, degree)
        return low * self.parts // lead, -(-high * self.parts // lead)


class TensorSpec(msgspec.Struct, frozen=True):
    """One parameter. Units that share it (tied embeddings) carry equal specs under one name."""

    name: str
    shape: tuple[int, ...]
    split: Split | None = None
    state: StateSpec | None = None
    """What is kept of it; None in plans that were not made for a job."""

    def kept(self, dtype: str = "float32") -> StateSpec:
        """The same; where the plan does not say, what AdamW keeps in this dtype."""
        return self.state or adamw_state(dtype)

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    def whole(self) -> Box:
        return tuple((0, size) for size in self.shape)

    def box(
        self, tensor_rank: int = 0, tensor: int = 1, shard_rank: int = 0, shard: int = 1
    ) -> Box:
        """What one worker holds: its tensor share, and of that its rows along dimension 0 by the
        shard axis.
        """
        box = list(self.whole())
        if self.split is not None and tensor > 1:
            low, high = self.split.part_range(tensor_rank, tensor)
            size = self.shape[self.split.dim] // self.split.parts
            box[self.split.dim] = (low * size, high * size)
        if shard > 1 and box:
            low, high = share(box[0][1] - box[0][0], shard_rank, shard)
            box[0] = (box[0][0] + low, box[0][0] + high)
        return tuple(box)


class Unit(msgspec.Struct, frozen=True):
    """A piece of the model that is never divided between stages: the embedding, one block, the
    head.

    Costs are times for one micro-batch at tensor degree 1, in any unit of time; only their
    ratios matter until a measured profile replaces them.
    """

    name: str
    tensors: tuple[TensorSpec, ...] = ()
    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    activation_bytes: int = 0
    """Kept from forward to backward, per micro-batch, at tensor degree 1."""
    boundary_bytes: int = 0
    """What the unit hands to the next one, per micro-batch."""

    @property
    def num_parameters(self) -> int:
        return sum(tensor.num_elements for tensor in self.tensors)


def with_kinds(
    units: tuple[Unit, ...], kinds_of: Callable[[TensorSpec], StateSpec]
) -> tuple[Unit, ...]:
    """The same units, with what is kept of every tensor."""
    return tuple(
        msgspec.structs.replace(
            unit,
            tensors=tuple(
                msgspec.structs.replace(tensor, state=kinds_of(tensor)) for tensor in unit.tensors
            ),
        )
        for unit in units
    )


def share(total: int, rank: int, degree: int) -> tuple[int, int]:
    """The `rank`-th of `degree` contiguous shares of `total` things; sizes differ by at most
    one.
    """
    return rank * total // degree, (rank + 1) * total // degree


def box_size(box: Box) -> int:
    return prod(high - low for low, high in box)


def intersect(a: Box, b: Box) -> Box | None:
    """The common part of two boxes of one tensor; None if there is none."""
    box = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return box if all(low < high for low, high in box) else None


def subtract(a: Box, b: Box) -> list[Box]:
    """`a` without `b`, as disjoint boxes."""
    common = intersect(a, b)
    if common is None:
        return [a] if box_size(a) else []
    pieces: list[Box] = []
    rest = list(a)
    for dim, (low, high) in enumerate(common):
        for piece in ((rest[dim][0], low), (high, rest[dim][1])):
            if piece[0] < piece[1]:
                pieces.append((*rest[:dim], piece, *rest[dim + 1 :]))
        rest[dim] = (low, high)
    return pieces


def check_units(units: tuple[Unit, ...]) -> None:
    """Refuse a model that contradicts itself."""
    if not units:
        raise HoldfastError("the model has no units: 0 given, at least 1 needed")
    names: set[str] = set()
    specs: dict[str, TensorSpec] = {}
    for unit in units:
        if unit.name in names:
            raise HoldfastError(f"two units are called {unit.name!r}")
        names.add(unit.name)
        for tensor in unit.tensors:
            known = specs.setdefault(tensor.name, tensor)
            if known != tensor:
                raise HoldfastError(
                    f"tensor {tensor.name!r} of unit {unit.name!r} differs from its first mention: "
                    f"{tensor.shape} {tensor.split} against {known.shape} {known.split}"
                )
            _check_tensor(unit, tensor)


def _check_tensor(unit: Unit, tensor: TensorSpec) -> None:
    if any(size < 1 for size in tensor.shape):
        raise HoldfastError(
            f"tensor {tensor.name!r} of unit {unit.name!r} has shape {tensor.shape}"
        )
    split = tensor.split
    if split is None:
        return
    if not 0 <= split.dim < len(tensor.shape):
        raise HoldfastError(
            f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions, its split names "
            f"dimension {split.dim}"
        )
    if split.parts < 1 or tensor.shape[split.dim] % split.parts:
        raise HoldfastError(
            f"tensor {tensor.name!r}: {tensor.shape[split.dim]} rows along dimension {split.dim} "
            f"do not divide into {split.parts} parts"
        )
    if split.lead and split.lead % split.parts:
        raise HoldfastError(
            f"tensor {tensor.name!r}: {split.parts} parts do not divide the "
            f"{split.lead} they follow"
        )
