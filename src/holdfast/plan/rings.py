"""Reductions over separate pipelines: when the last one ends, and roughly how long they take.

The rules are those of `tail.py`: a unit is reduced over all stages that hold it when its gradients
are ready everywhere, one unit after the other on every stage, in as many slices as its smallest
team has workers. Stages that are exactly alike are counted, not listed, and units held by the same
stages are looked at together, so the cost depends on the number of different pipelines.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import msgspec

from holdfast.plan.profile import Link
from holdfast.plan.tail import ring

WIDE = 1 << 20
"""More workers than any team has."""

Span = tuple[int, int, int, float]
"""Of a stage: first, stop, seats, the time of its last computation."""


class Held(msgspec.Struct, frozen=True):
    """A stage as the reductions see it."""

    first: int
    stop: int
    seats: int
    """Into how many slices its workers cut a unit."""
    start: float
    end: float
    """Of the last computation that adds to its gradients."""
    count: int = 1
    """How many stages are exactly like this one."""


class Rings:
    def __init__(
        self,
        sizes: Sequence[int],
        gradient: Sequence[float],
        tied: dict[int, tuple[int, ...]],
        link: Link,
    ) -> None:
        self.sizes = sizes
        """Gradient bytes of every unit."""
        self.gradient = gradient
        """Backward work of the first n units."""
        self.tied = tied
        """For the first unit of a tied tensor: all units that hold it; reduced with all of them."""
        self.link = link

    def end(self, held: Sequence[Held]) -> float:
        """When the last unit is reduced over all its holders."""
        if self.link == Link():
            return 0.0
        free = [0.0] * len(held)
        for time, _, numbers, duration in sorted(self._ready(held)):
            end = max([time, *[free[n] for n in numbers]]) + duration
            for n in numbers:
                free[n] = end
        return max(free, default=0.0)

    def _ready(self, held: Sequence[Held]) -> list[tuple[float, int, tuple[int, ...], float]]:
        """(when, minus the unit, its holders, how long) of every reduction."""
        lines = [self._line(stage) for stage in held]
        ready: list[tuple[float, int, tuple[int, ...], float]] = []
        for first, stop, numbers in self._runs(held):
            count = sum([held[n].count for n in numbers])
            seats = min([held[n].seats for n in numbers])
            known: dict[int, float] = {}
            for unit in range(first, stop) if count > 1 else ():
                size, at = self.sizes[unit], self.gradient[unit]
                if size not in known:
                    known[size] = ring(size / seats, count, self.link)
                # Who holds it as a later unit has it ready in the end, not after that.
                ends = [min(lines[n][0] - lines[n][1] * at, held[n].end) for n in numbers]
                time = max(ends)
                ready.append((time, -unit, numbers, known[size]))
        return ready

    def _line(self, held: Held) -> tuple[float, float]:
        """(a, b): the gradients of a unit are ready at a - b * (work of the units before it)."""
        total = self.gradient[held.stop] - self.gradient[held.first]
        slope = (held.end - held.start) / total if total else 0.0
        return held.end + slope * self.gradient[held.first], slope

    def _runs(self, held: Sequence[Held]) -> list[tuple[int, int, tuple[int, ...]]]:
        """(first, stop, numbers of the stages that hold them) of units held by the same stages."""
        ends = [end for stage in held for end in (stage.first, stage.stop)]
        apart = [end for unit in self.tied for end in (unit, unit + 1)]
        cuts = sorted({0, len(self.sizes), *ends, *apart})
        at = {cut: number for number, cut in enumerate(cuts)}
        on: list[list[int]] = [[] for _ in cuts]
        for number, stage in enumerate(held):
            for run in on[at[stage.first] : at[stage.stop]]:
                run.append(number)
        for unit, others in self.tied.items():
            on[at[unit]] = [
                n
                for n, stage in enumerate(held)
                if any(stage.first <= other < stage.stop for other in others)
            ]
        pairs = zip(pairwise(cuts), on, strict=False)
        return [(first, stop, tuple(numbers)) for (first, stop), numbers in pairs]

    def rough(self, spans: Sequence[Span], count: int) -> float:
        """What is left to reduce after the last computation of the stage with most of it: units
        are ready one after the other during that computation. `spans` are of the stages of all
        different pipelines, of which there are `count` in all.
        """
        if count < 2:
            return 0.0
        fewest = [WIDE] * len(self.sizes)
        for first, stop, seats, _ in spans:
            for unit in range(first, stop):
                if seats < fewest[unit]:
                    fewest[unit] = seats
        per_byte = ring(1.0, count, Link(0.0, self.link.bandwidth))
        per_unit = ring(0.0, count, self.link)
        times = [per_byte * size / n + per_unit for size, n in zip(self.sizes, fewest, strict=True)]
        sums = list(accumulate(times, initial=0.0))
        return max([
            max(sums[stop] - sums[first] - last, times[first]) for first, stop, _, last in spans
        ])  # fmt: skip
