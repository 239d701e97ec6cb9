"""Which single slow-down explains what was seen?

Where workers and paths report their own times, they are compared with their peers (`watch`), and
nothing has to be inferred. This file is for the rest: only step times, or also when each worker
ended, and somewhere something is slow. Every lane and every link between two lanes is supposed in
turn to be slow by a range of factors; the timeline says what the last steps would have been; the
suppositions are ranked by how well that fits.

Workloads differ from step to step, so the replica that decides the step's length changes: a few
steps together tell apart what one could not. Lanes in the same place of the pipeline may remain
indistinguishable; then they share the probability, and a probe has to decide.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from holdfast.detect.pace import PairTimes, PartShape
from holdfast.detect.predict import Predictor, channel_lanes
from holdfast.detect.workload import Array, Index

FACTORS: Array = np.exp(np.linspace(np.log(1.04), np.log(16.0), 32))
"""Links are known to get ten times slower, devices rarely more than three."""
Guess = tuple[float, float, tuple[int, ...]]
"""(loss, factor, lanes)."""

ENOUGH = 0.95
"""Suspects are named until they hold this much of the probability."""
MAX_SUSPECTS = 8


class Moment(msgspec.Struct, frozen=True):
    """A step to explain: what every computation should have taken, and what was seen."""

    durations: tuple[Array, ...]
    """Per shape: (computation, part)."""
    step_time: float
    """Without what is usual beyond the prediction."""
    ends: Array | None
    """Per lane, when its last computation ended; None: not measured."""


class Suspect(msgspec.Struct, frozen=True):
    lanes: tuple[int, ...]
    """One lane: it computes slowly. Two: their link is slow, both ways."""
    factor: float
    probability: float
    misfit: float
    """Mean error that is left, in units of the noise; about 1 is a perfect explanation."""


def find_suspects(
    predictor: Predictor,
    moments: Sequence[Moment],
    noise: float,
    *,
    lanes: bool = True,
    paths: bool = True,
) -> list[Suspect]:
    """Ranked, most probable first; as many as hold most of the probability."""
    base = [_Base(predictor, moment) for moment in moments]
    found: list[Guess] = []
    for number, shape in enumerate(predictor.shapes):
        for column in range(len(shape.parts)):
            trial = _Trial(predictor, number, column, moments, base, noise)
            if lanes:
                found.extend(trial.slow_lanes())
            if paths and shape.links is not None:
                found.extend(trial.slow_paths(shape.links))
    return _rank(found, sum(moment.size for moment in base))


def _rank(found: list[Guess], size: int) -> list[Suspect]:
    if not found:
        return []
    found = sorted(found)
    likely = np.exp(-0.5 * (np.array([loss for loss, _, _ in found]) - found[0][0]))
    likely /= likely.sum()
    suspects: list[Suspect] = []
    for (loss, factor, lanes), probability in zip(found, likely.tolist(), strict=True):
        suspects.append(Suspect(lanes, factor, probability, float(np.sqrt(loss / size))))
        if sum(s.probability for s in suspects) > ENOUGH or len(suspects) == MAX_SUSPECTS:
            break
    return suspects


class _Base:
    """One step as predicted."""

    def __init__(self, predictor: Predictor, moment: Moment) -> None:
        # A lane without work ends at once; so small a time keeps the logarithm finite.
        self.ends = np.full(len(predictor.layout.lanes), 1e-9)
        for shape, durations in zip(predictor.shapes, moment.durations, strict=True):
            self.ends[shape.lanes] = shape.ends(durations, shape.links)[shape.last]
        self.seen = moment.ends
        self.size = 1 if moment.ends is None else len(moment.ends)
        self.tail = predictor.tail
        self.step_time = moment.step_time

    def without(self, lanes: Index) -> tuple[float, float]:
        """The latest end among all other lanes, and their share of the misfit."""
        others = np.ones(len(self.ends), dtype=np.bool_)
        others[lanes] = False
        latest = float(self.ends[others].max()) if others.any() else 0.0
        if self.seen is None:
            return latest, 0.0
        return latest, float(np.sum(np.log(self.seen[others] / self.ends[others]) ** 2))


class _Trial:
    """Suppositions about one part; its columns are steps x factors, factors innermost."""

    def __init__(
        self,
        predictor: Predictor,
        number: int,
        column: int,
        moments: Sequence[Moment],
        base: Sequence[_Base],
        noise: float,
    ) -> None:
        self.predictor, self.base, self.noise, self.column = predictor, base, noise, column
        self.shape: PartShape = predictor.shapes[number]
        self.lanes = self.shape.lanes[:, column]
        single = np.stack([moment.durations[number][:, column] for moment in moments], axis=1)
        self.durations: Array = np.repeat(single, len(FACTORS), axis=1)
        self.factors = np.tile(FACTORS, len(moments))
        self.others = [moment.without(self.lanes) for moment in base]

    def slow_lanes(self) -> list[Guess]:
        own = self.predictor.work.lane[self.shape.ops[:, self.column]]
        found: list[Guess] = []
        for lane in self.lanes.tolist():
            slowed = np.where((own == lane)[:, None], self.factors, 1.0)
            ends = self.shape.ends(self.durations * slowed, self._links(1.0))
            found.append((*self._best(ends), (lane,)))
        return found

    def slow_paths(self, links: PairTimes) -> list[Guess]:
        program = self.predictor.program
        pairs = channel_lanes(program)
        channel = [program.channel[op] for op in self.shape.ops[:, self.column].tolist()]
        known = [tuple(sorted(pairs[c])) if c >= 0 else () for c in channel]
        found: list[Guess] = []
        for pair in dict.fromkeys(p for p in known if len(p) == 2 and p[0] != p[1]):
            mine = np.array([other == pair for other in known])
            slowed = np.where(mine[:, None], self.factors, 1.0)
            ends = self.shape.ends(self.durations, self._links(slowed))
            found.append((*self._best(ends), pair))
        return found

    def _links(self, factor: Array | float) -> PairTimes | None:
        links = self.shape.links
        if links is None:
            return None
        own = slice(self.column, self.column + 1)
        return PairTimes(links.occupancy[:, own] * factor, links.latency[:, own] * factor)

    def _best(self, ends: Array) -> tuple[float, float]:
        """(loss, factor) of the factor that fits best over all steps."""
        finished: Array = ends[self.shape.last].reshape(len(self.lanes), len(self.base), -1)
        loss = np.zeros(len(FACTORS))
        for k, (moment, (latest, rest)) in enumerate(zip(self.base, self.others, strict=True)):
            mine = finished[:, k, :]
            if moment.seen is None:
                total = np.maximum(mine.max(axis=0), latest) + moment.tail
                loss += np.log(moment.step_time / total) ** 2
            else:
                loss += (np.log(moment.seen[self.lanes][:, None] / mine) ** 2).sum(axis=0) + rest
        best = int(np.argmin(loss))
        return float(loss[best]) / self.noise**2, float(FACTORS[best])
