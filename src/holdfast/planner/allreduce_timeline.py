"""Reductions over separate pipelines: when the last one ends, and roughly how long they take.

The rules are those of `plan/step_epilogue.py`: a unit is reduced over all stages that hold it when
its gradients are ready everywhere, one unit after the other on every stage, in as many slices as
its smallest team has workers. Stages that are exactly alike are counted, not listed, and units held
by the same stages are looked at together, so the cost depends on the number of different
pipelines.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import itemgetter

import msgspec

from holdfast.plan.profile import Link, Profile
from holdfast.plan.step_epilogue import ring, rings_link

WIDE = 1 << 20
"""More workers than any team has."""

ReduceSpan = tuple[int, int, int, float]
"""Of a stage: first, stop, seats, the time of its last computation."""


class HeldStage(msgspec.Struct, frozen=True):
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


class AllreduceTimeline:
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
        self._rough: dict[tuple[int, tuple[int, ...]], tuple[list[float], list[float]]] = {}

    def rings(
        self, profile: Profile, held: Sequence[tuple[int, int, tuple[str, ...]]]
    ) -> tuple[Link, ...] | None:
        """The link of every unit's ring through (first, stop, workers) of all stages; None: that of
        the profile, for all.
        """
        if not profile.links:
            return None
        found: list[Link] = []
        known: dict[tuple[int, ...], Link] = {}
        for unit in range(len(self.sizes)):
            units = self.tied.get(unit, (unit,))
            numbers = tuple(
                n
                for n, (first, stop, _) in enumerate(held)
                if any(first <= other < stop for other in units)
            )
            if numbers not in known:
                ring_of = [held[n][2] for n in numbers]
                known[numbers] = rings_link(profile, ring_of) if ring_of else self.link
            found.append(known[numbers])
        return tuple(found)

    def end(self, held: Sequence[HeldStage], rings: Sequence[Link] | None = None) -> float:
        """When the last unit is reduced over all its holders. `rings`: see there."""
        if self.link == Link():
            return 0.0
        free = [0.0] * len(held)
        for time, _, numbers, duration in sorted(self._ready(held, rings)):
            for n in numbers:
                if free[n] > time:
                    time = free[n]
            for n in numbers:
                free[n] = time + duration
        return max(free, default=0.0)

    def _ready(
        self, held: Sequence[HeldStage], rings: Sequence[Link] | None
    ) -> list[tuple[float, int, tuple[int, ...], float]]:
        """(when, minus the unit, its holders, how long) of every reduction."""
        lines = [self._line(stage) for stage in held]
        ready: list[tuple[float, int, tuple[int, ...], float]] = []
        for first, stop, numbers in self._runs(held):
            count = sum([held[n].count for n in numbers])
            if count < 2:
                continue
            seats = min([held[n].seats for n in numbers])
            work = self.gradient[first:stop]
            # A stage that holds it as a later unit has it ready in the end, not after that.
            times = [
                [a - b * at if a - b * at < end else end for at in work]
                for a, b, end in [lines[n] for n in numbers]
            ]
            known: dict[tuple[int, Link], float] = {}
            for unit, time in enumerate(map(max, zip(*times, strict=True)), first):
                size, link = self.sizes[unit], rings[unit] if rings is not None else self.link
                if (size, link) not in known:
                    known[size, link] = ring(size / seats, count, link)
                ready.append((time, -unit, numbers, known[size, link]))
        return ready

    def _line(self, held: HeldStage) -> tuple[float, float, float]:
        """(a, b, end): the gradients of a unit are ready at a - b * (work of the units before it),
        and in the end.
        """
        total = self.gradient[held.stop] - self.gradient[held.first]
        slope = (held.end - held.start) / total if total else 0.0
        return held.end + slope * self.gradient[held.first], slope, held.end

    def _runs(self, held: Sequence[HeldStage]) -> list[tuple[int, int, tuple[int, ...]]]:
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

    def rough(self, spans: Sequence[ReduceSpan], count: int) -> float:
        """What is left to reduce after the last computation of the stage with most of it: units
        are ready one after the other during that computation. `spans` are of the stages of all
        different pipelines, of which there are `count` in all.
        """
        if count < 2:
            return 0.0
        fewest = [WIDE] * len(self.sizes)
        for first, stop, seats, _ in sorted(spans, key=itemgetter(2), reverse=True):
            fewest[first:stop] = [seats] * (stop - first)
        times, sums = self._times(count, tuple(fewest))
        longest = 0.0
        for first, stop, _, last in spans:
            left = sums[stop] - sums[first] - last
            if times[first] > left:
                left = times[first]
            if left > longest:
                longest = left
        return longest

    def _times(self, count: int, fewest: tuple[int, ...]) -> tuple[list[float], list[float]]:
        """Of every unit, over `count` pipelines and in `fewest` slices; and of the first n."""
        key = (count, fewest)
        if key not in self._rough:
            per_byte = ring(1.0, count, Link(0.0, self.link.bandwidth))
            per_unit = ring(0.0, count, self.link)
            pairs = zip(self.sizes, fewest, strict=True)
            times = [per_byte * size / n + per_unit for size, n in pairs]
            self._rough[key] = times, list(accumulate(times, initial=0.0))
        return self._rough[key]
