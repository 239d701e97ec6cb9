"""Bytes of any stage, before there is a plan: parameters, state and activations by range of units.

The numbers are those of `memory.py`, which needs a timeline; here sums over units are prepared
once per (tensor, shard) degree, so that a range costs two look-ups.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise

from holdfast.plan.memory import gathered_at_once
from holdfast.plan.plan import Plan
from holdfast.plan.units import TensorSpec, Unit, box_size

MARGIN = 4096
"""Bytes per unit, more than rounding can add."""

_Sums = list[list[int]]
"""Per rank, the elements of the first i units."""


class Footprint:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.limit = plan.limits.device_bytes
        self.activations = list(accumulate((u.activation_bytes for u in plan.units), initial=0))
        self.max_tensor = min(
            (t.split.limit for u in plan.units for t in u.tensors if t.split is not None),
            default=1 << 30,
        )
        """A stage may hold any unit, so the smallest limit counts."""
        self.tied = _tied(plan.units)
        self.alike = _alike(plan.units)
        self.bounded = bool(self.limit) and not plan.schedule.recompute
        """Is `upper` a bound?"""
        self.sums: dict[tuple[int, int], _Sums] = {}
        self.different: dict[tuple[int, int], _Sums] = {}
        """Without equal rows."""
        self.upper: dict[int, list[int]] = {}
        self.known: dict[tuple[int, int, int, int, int], bool] = {}
        self.wholes: dict[tuple[int, int], int] = {}
        self.rooms: dict[tuple[int, int, int, int], int] = {}

    def held(self, first: int, stop: int, tensor: int, shard: int = 1) -> list[int]:
        """Elements every rank holds of these units; a tied tensor counts once."""
        sums = self._sums(tensor, shard)
        held = [row[stop] - row[first] for row in sums]
        for spec, units in self.tied:
            inside = sum(first <= unit < stop for unit in units)
            if inside > 1:
                sizes = _elements(spec, tensor, shard)
                held = [have - (inside - 1) * size for have, size in zip(held, sizes, strict=True)]
        return held

    def whole(self, first: int, stop: int) -> int:
        """Elements of these units; a tied tensor counts once."""
        found = self.wholes.get((first, stop))
        if found is None:
            found = self.wholes[first, stop] = self.held(first, stop, 1)[0]
        return found

    def most_held(self, first: int, stop: int, tensor: int, shard: int = 1) -> int:
        """By the fullest rank. Ranks that hold the same of every unit are looked at once."""
        if self.tied and self._is_twice(first, stop):
            return max(self.held(first, stop, tensor, shard))
        rows = self.different.get((tensor, shard)) or self._different(tensor, shard)
        if len(rows) == 1:
            return rows[0][stop] - rows[0][first]
        return max([row[stop] - row[first] for row in rows])

    def _is_twice(self, first: int, stop: int) -> bool:
        """Is a tied tensor in several of these units?"""
        return any(first <= a and b < stop for _, units in self.tied for a, b in pairwise(units))

    def _sums(self, tensor: int, shard: int) -> _Sums:
        key = (tensor, shard)
        if key not in self.sums:
            sizes: dict[int, list[int]] = {}
            for number in dict.fromkeys(self.alike):
                specs = self.plan.units[number].tensors
                parts = [_elements(spec, tensor, shard) for spec in specs]
                sizes[number] = [sum(p[r] for p in parts) for r in range(tensor * shard)]
            rows: dict[tuple[int, ...], list[int]] = {}
            ranks = list(zip(*sizes.values(), strict=True))
            for rank, column in enumerate(ranks):
                if column not in rows:
                    row = [sizes[number][rank] for number in self.alike]
                    rows[column] = list(accumulate(row, initial=0))
            self.sums[key] = [rows[column] for column in ranks]
            self.different[key] = list(rows.values())
        return self.sums[key]

    def _different(self, tensor: int, shard: int) -> _Sums:
        self._sums(tensor, shard)
        return self.different[tensor, shard]

    def device_bytes(self, first: int, stop: int, tensor: int, shard: int, in_flight: int) -> int:
        """What the fullest worker of a stage needs at the worst moment of a step."""
        state = self.plan.state_bytes
        if shard == 1:
            per_element = state.parameter + state.gradient + state.optimizer
            fixed = self.most_held(first, stop, tensor) * per_element
        else:
            held = self.held(first, stop, tensor, shard)
            whole = self.held(first, stop, tensor, 1)
            fixed = max(
                own * (state.parameter + state.gradient + state.optimizer)
                + whole[rank % tensor] * state.gradient
                + self._gathered(first, stop, tensor, rank % tensor, whole) * state.parameter
                for rank, own in enumerate(held)
            )
        return fixed + self.activation_bytes(first, stop, tensor, shard, in_flight)

    def _gathered(self, first: int, stop: int, tensor: int, rank: int, whole: list[int]) -> int:
        """Elements that a rank of a shard group gathers at a time."""
        sizes = [self.held(number, number + 1, tensor, 1)[rank] for number in range(first, stop)]
        return gathered_at_once(sizes, whole[rank], self.plan.schedule)

    def activation_bytes(
        self, first: int, stop: int, tensor: int, shard: int, in_flight: int
    ) -> int:
        full = -(-(self.activations[stop] - self.activations[first]) // tensor)
        if not self.plan.schedule.recompute:
            return in_flight * full
        boundary = self.plan.units[first - 1].boundary_bytes if first else 0
        return in_flight * boundary + full

    def fits(self, first: int, stop: int, tensor: int, shard: int, in_flight: int) -> bool:
        """Can the workers of a stage hold it? Asked often: most are far from the limit, which a
        bound tells, and other answers are kept.
        """
        if tensor > self.max_tensor:
            return False
        if not self.limit:
            return True
        if shard == 1 and self.bounded:
            row = self.upper.get(tensor) or self._upper(tensor)
            act = self.activations
            if row[stop] - row[first] + in_flight * (act[stop] - act[first]) / tensor < self.limit:
                return True
        key = (first, stop, tensor, shard, in_flight)
        if key not in self.known:
            self.known[key] = self.device_bytes(*key) <= self.limit
        return self.known[key]

    def room(self, first: int, tensor: int, shard: int, in_flight: int) -> int:
        """Where the units end that the workers of a stage can hold from the first one on."""
        key = (first, tensor, shard, in_flight)
        found = self.rooms.get(key)
        if found is None:
            stops = range(first + 1, len(self.plan.units) + 1)
            fit = bisect_left(stops, True, key=lambda stop: not self.fits(first, stop, *key[1:]))
            found = self.rooms[key] = first + fit
        return found

    def _upper(self, tensor: int) -> list[int]:
        """Bytes of the first n units if every unit were held by its fullest rank, rounding of
        activations included.
        """
        state = self.plan.state_bytes
        per_element = state.parameter + state.gradient + state.optimizer
        rows = [[b - a for a, b in pairwise(row)] for row in self._different(tensor, 1)]
        most = [max(sizes) * per_element + MARGIN for sizes in zip(*rows, strict=True)]
        self.upper[tensor] = list(accumulate(most, initial=0))
        return self.upper[tensor]


def _elements(spec: TensorSpec, tensor: int, shard: int) -> list[int]:
    """Per rank, tensor ranks innermost as in a stage."""
    return [
        box_size(spec.box(rank % tensor, tensor, rank // tensor, shard))
        for rank in range(tensor * shard)
    ]


def _alike(units: tuple[Unit, ...]) -> list[int]:
    """For every unit, the first one with tensors of the same shapes."""
    known: dict[object, int] = {}
    shapes = [tuple([(spec.shape, spec.split) for spec in unit.tensors]) for unit in units]
    return [known.setdefault(key, number) for number, key in enumerate(shapes)]


def _tied(units: tuple[Unit, ...]) -> list[tuple[TensorSpec, tuple[int, ...]]]:
    return list(_shared_tensors(units))


def _shared_tensors(units: tuple[Unit, ...]) -> Iterator[tuple[TensorSpec, tuple[int, ...]]]:
    where: dict[str, list[int]] = {}
    specs: dict[str, TensorSpec] = {}
    for number, unit in enumerate(units):
        for spec in unit.tensors:
            where.setdefault(spec.name, []).append(number)
            specs[spec.name] = spec
    for name, numbers in where.items():
        if len(numbers) > 1:
            yield specs[name], tuple(numbers)
