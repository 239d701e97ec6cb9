"""The holder map: which worker holds which slice of which tensor.

It follows from the plan alone and is the one truth that reduction, snapshots, loading and state
movement read. Parameters, gradients and optimizer state of a slice are always held together.
Where stages that hold a unit are cut differently (tensor degrees 2 and 3, say), their slices
overlap; `cells` then gives the common refinement, pieces of which every worker holds all or
nothing.
"""

from functools import cached_property
from itertools import pairwise, product

import msgspec

from holdfast.plan.plan import Plan, Stage
from holdfast.plan.units import Box, TensorSpec, box_size, intersect

SeatKey = tuple[int, int, int, int, int, int]


class Cell(msgspec.Struct, frozen=True):
    """A piece of a tensor and all workers that hold it, in plan order."""

    box: Box
    holders: tuple[str, ...]


class HolderMap(msgspec.Struct, frozen=True, dict=True):
    plan: Plan

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        return {tensor.name: tensor for unit in self.plan.units for tensor in unit.tensors}

    @cached_property
    def units_of_tensor(self) -> dict[str, tuple[int, ...]]:
        """Usually one unit; two for tied embeddings."""
        units: dict[str, list[int]] = {}
        for number, unit in enumerate(self.plan.units):
            for tensor in unit.tensors:
                units.setdefault(tensor.name, []).append(number)
        return {name: tuple(numbers) for name, numbers in units.items()}

    @cached_property
    def buckets(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """Per unit, the tensors whose gradients are reduced with it. A tied tensor belongs to the
        first of its units.
        """
        first = {name: units[0] for name, units in self.units_of_tensor.items()}
        return tuple(
            tuple(tensor for tensor in unit.tensors if first[tensor.name] == number)
            for number, unit in enumerate(self.plan.units)
        )

    @cached_property
    def bucket_stages(self) -> tuple[tuple[int, ...], ...]:
        """Per unit, the stages that hold something of its bucket: those with the unit itself, and
        those with another unit that shares one of its tensors.
        """
        involved: list[set[int]] = [{number} for number in range(len(self.plan.units))]
        for units in self.units_of_tensor.values():
            involved[units[0]].update(units)
        return tuple(
            tuple(
                number
                for number, stage in enumerate(self.plan.stages)
                if any(stage.first <= unit < stage.stop for unit in units)
            )
            for units in involved
        )

    @cached_property
    def _boxes(self) -> dict[tuple[str, int, int, int, int], Box]:
        return {}

    def box_at(self, tensor: TensorSpec, stage: Stage, position: int) -> Box:
        """What the worker at `position` of a stage holds of a tensor of that stage."""
        ranks = stage.coordinates(position)
        place = (ranks.get("tensor", 0), stage.tensor, ranks.get("shard", 0), stage.shard)
        key = (tensor.name, *place)
        if key not in self._boxes:
            self._boxes[key] = tensor.box(*place)
        return self._boxes[key]

    def slices(self, worker: str) -> dict[str, tuple[Box, ...]]:
        """Everything a worker holds, by tensor; more than one box only if its stages are cut
        differently.
        """
        held: dict[str, dict[Box, None]] = {}
        for stage, position in self.plan.seats.get(worker, ()):
            for unit in self.plan.units[stage.first : stage.stop]:
                for tensor in unit.tensors:
                    box = self.box_at(tensor, stage, position)
                    if box_size(box):
                        held.setdefault(tensor.name, {})[box] = None
        return {name: tuple(boxes) for name, boxes in held.items()}

    @cached_property
    def num_parameters(self) -> dict[str, int]:
        """Elements every worker holds."""
        known: dict[tuple[SeatKey, ...], int] = {}
        counts: dict[str, int] = {}
        for worker, seats in self.plan.seats.items():
            key = tuple(seat_key(stage, position) for stage, position in seats)
            if key not in known:
                boxes = [box for boxes in self.slices(worker).values() for box in boxes]
                known[key] = sum(box_size(box) for box in boxes)
            counts[worker] = known[key]
        return counts

    def holders(self, tensor: str) -> dict[Box, tuple[str, ...]]:
        """Every box of a tensor that some worker holds as a whole, with its holders."""
        spec = self.tensors[tensor]
        found: dict[Box, dict[str, None]] = {}
        for stage in self._stages_of(tensor):
            for position, worker in enumerate(stage.workers):
                box = self.box_at(spec, stage, position)
                if box_size(box):
                    found.setdefault(box, {})[worker] = None
        return {box: tuple(workers) for box, workers in found.items()}

    def cells(self, tensor: str) -> tuple[Cell, ...]:
        """The common refinement of all boxes, in order of position; together they are the whole
        tensor.
        """
        found = self.holders(tensor)
        if _is_partition(found, self.tensors[tensor]):
            return tuple(Cell(box, workers) for box, workers in sorted(found.items()))
        place = self._places.__getitem__
        return tuple(
            Cell(cell.box, tuple(sorted(cell.holders, key=place))) for cell in refine(found)
        )

    @cached_property
    def _places(self) -> dict[str, int]:
        return {worker: number for number, worker in enumerate(self.plan.workers)}

    def _stages_of(self, tensor: str) -> list[Stage]:
        units = self.units_of_tensor[tensor]
        return [
            stage
            for stage in self.plan.stages
            if any(stage.first <= unit < stage.stop for unit in units)
        ]


def seat_key(stage: Stage, position: int) -> SeatKey:
    """Everything about a seat that decides what it holds."""
    ranks = stage.coordinates(position)
    tensor, shard = ranks.get("tensor", 0), ranks.get("shard", 0)
    return (stage.first, stage.stop, tensor, stage.tensor, shard, stage.shard)


def refine(found: dict[Box, tuple[str, ...]]) -> tuple[Cell, ...]:
    """Cut boxes at all their edges; pieces without a holder are left out."""
    dims = len(next(iter(found), ()))
    edges = [sorted({edge for box in found for edge in box[dim]}) for dim in range(dims)]
    cells: list[Cell] = []
    for box in product(*(pairwise(edge) for edge in edges)):
        holders: dict[str, None] = {}
        for other, workers in found.items():
            if intersect(box, other) is not None or not box:
                holders.update(dict.fromkeys(workers))
        if holders:
            cells.append(Cell(box, tuple(holders)))
    return tuple(cells)


def _is_partition(found: dict[Box, tuple[str, ...]], tensor: TensorSpec) -> bool:
    """Do the boxes tile the tensor? Every stage alone covers it, so equal areas mean no overlap."""
    return sum(box_size(box) for box in found) == tensor.num_elements
