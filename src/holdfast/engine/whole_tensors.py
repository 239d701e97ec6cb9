"""Tensors that are cut over the members of a stage, put together for updates of the whole.

Every member gives what it holds, of a part that several hold the first of them; each gets all of
it. Bytes are summed as integers, with zeros where a member gives nothing: so they arrive as they
were, on any transport that can reduce. All members then compute the same update of the whole, and
each keeps its part. It is collected before the agreement of a step and used after it: from there
on, no worker depends on another.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from holdfast.engine.state import Slice, TensorState, local_index, num_bytes_of, pack, unpack
from holdfast.engine.tensor_parallel import TensorGroup
from holdfast.plan.holders import HolderMap
from holdfast.plan.units import Box, TensorSpec, subtract

GatheredTensor = tuple[dict[str, Tensor], Tensor]
"""All kinds of state, and the gradient."""


class CutTensor:
    """One tensor that is cut, as this worker takes part in putting it together."""

    def __init__(
        self, spec: TensorSpec, piece: Slice, lower: list[Box], group: TensorGroup
    ) -> None:
        """`lower`: what members of lower rank hold, and give."""
        self.spec, self.piece, self.group = spec, piece, group
        self.given = [piece.box]
        for box in lower:
            self.given = [part for own in self.given for part in subtract(own, box)]

    def gather(self) -> GatheredTensor:
        piece, shape = self.piece, self.spec.shape
        gradient = piece.summed()
        sources = [*piece.parts(piece.box), gradient]
        wholes = [torch.zeros(shape, dtype=s.dtype, device=s.device) for s in sources]
        for box in self.given:
            for whole, source in zip(wholes, sources, strict=True):
                whole[local_index(self.spec.whole(), box)] = source[local_index(piece.box, box)]
        size = -(-num_bytes_of(wholes) // 4) * 4
        data = torch.zeros(size, dtype=torch.uint8, device=gradient.device)
        data[: num_bytes_of(wholes)] = pack(wholes)
        self.group.all_reduce(data.view(torch.int32))
        unpack(data, wholes)
        return dict(zip(piece.kinds, wholes[:-1], strict=True)), wholes[-1]


class WholeTensors:
    """All of one worker under one plan, in an order that the members of its stages share."""

    def __init__(self, cut: Mapping[str, CutTensor], gathered: dict[str, GatheredTensor]) -> None:
        self._cut, self._gathered = cut, gathered

    def collect(self) -> None:
        self._gathered = {name: tensor.gather() for name, tensor in self._cut.items()}

    def gradients(self) -> list[Tensor]:
        return [gradient for _, gradient in self._gathered.values()]

    def has(self, tensor: str) -> bool:
        """Otherwise it is not cut here, or a slice of it can be updated as it is."""
        return tensor in self._cut

    def take(self, tensor: str) -> GatheredTensor:
        return self._gathered[tensor]

    def place(self, tensor: str) -> tuple[slice, ...]:
        """Where in the whole this worker's part is."""
        found = self._cut[tensor]
        return local_index(found.spec.whole(), found.piece.box)

    def clear(self) -> None:
        self._gathered = {}


def whole_tensors(state: TensorState, groups: Mapping[str, TensorGroup]) -> WholeTensors:
    """`groups`: the tensor group of every stage that the worker fills."""
    return WholeTensors(dict(_cut_tensors(state, groups)), {})


def _cut_tensors(
    state: TensorState, groups: Mapping[str, TensorGroup]
) -> Iterator[tuple[str, CutTensor]]:
    holders = HolderMap(state.plan)
    seen: set[str] = set()
    for stage, position in state.plan.seats.get(state.worker, ()):
        group = groups[stage.name]
        rank = stage.coordinates(position).get("tensor", 0)
        for unit in state.plan.units[stage.first : stage.stop]:
            for spec in unit.tensors:
                if spec.kept().by_slice or spec.name in seen:
                    continue
                seen.add(spec.name)
                piece = state.slices[spec.name]
                if piece.box == spec.whole():
                    continue
                lower = [spec.box(other, stage.tensor) for other in range(rank)]
                yield spec.name, CutTensor(holders.tensors[spec.name], piece, lower, group)
