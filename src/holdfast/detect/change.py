"""Has it changed? Two tests for many series at once.

A series is a logarithm of observed over predicted, less what is usual for it: zero when nothing
happens, 0.095 when something takes 10 % longer. Both tests answer in every step, for every
series, whether it now lies above or below zero.

**Page-Hinkley** adds up what exceeds a tolerance and never lets the sum fall below zero; an alarm
is a sum above a threshold. A shift of s is seen after threshold / (s - tolerance) steps.

**Bayesian online change point detection** keeps, for every possible time of the last change, how
likely it is and what the mean has been since; an alarm is a probability that the current mean lies
beyond the tolerance.

In both, one step may say only so much: a value is cut at `clip`, so that no single outlier (a
garbage collection, a checkpoint) is an alarm, however large. Tolerance, threshold and cut grow with
the noise of the series.

bench/detector.py prints both side by side. As tuned here neither gave a false alarm; Bayes is one
step quicker from 10 % on (2 or 3 steps against 3), Page-Hinkley misses fewer changes of 5 % and
fewer recoveries, and costs a sixtieth (0.07 ms against 4 ms for 1,024 series): it is the default.
"""

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from holdfast.detect.workload import Array, Index

Flags = npt.NDArray[np.bool_]


class Tuning(msgspec.Struct, frozen=True):
    """When a change counts. All sizes are logarithms: 0.1 is about 10 %."""

    tolerance: float = 0.02
    """A shift of this size is never an alarm."""
    threshold: float = 0.2
    clip: float = 0.12
    """The most that one step may say."""
    tolerance_noise: float = 1.0
    """Tolerance in units of the noise, where that is more."""
    threshold_noise: float = 10.0
    clip_noise: float = 3.0
    hazard: float = 1e-5
    """Bayes only: how likely a change is in any step."""
    certainty: float = 0.999
    """Bayes only: probability that makes an alarm."""
    memory: int = 32
    """Bayes only: changes further back than this are one case."""


def cut(values: Array, noise: Array, tuning: Tuning) -> Array:
    limit = np.maximum(tuning.clip, tuning.clip_noise * noise)
    return np.clip(values, -limit, limit)


class ShiftTest(msgspec.Struct, frozen=True):
    above: Flags
    below: Flags
    steps: Index
    """For how many steps the present excursion has lasted."""


class Test(Protocol):
    def update(self, values: Array, noise: Array) -> ShiftTest: ...
    def clear(self, chosen: Flags) -> None: ...


class PageHinkley:
    def __init__(self, num_series: int, tuning: Tuning) -> None:
        self.tuning = tuning
        self.sums: Array = np.zeros((2, num_series))
        """Above and below."""
        self.steps: Array = np.zeros((2, num_series))

    def update(self, values: Array, noise: Array) -> ShiftTest:
        tuning = self.tuning
        value = cut(values, noise, tuning)
        tolerance = np.maximum(tuning.tolerance, tuning.tolerance_noise * noise)
        threshold = np.maximum(tuning.threshold, tuning.threshold_noise * noise)
        self.sums = np.maximum(0.0, self.sums + np.stack([value, -value]) - tolerance)
        self.steps = np.where(self.sums > 0.0, self.steps + 1, 0.0)
        above, below = self.sums > threshold
        steps = np.where(below, self.steps[1], self.steps[0])
        return ShiftTest(above, below, steps.astype(np.int64))

    def clear(self, chosen: Flags) -> None:
        self.sums[:, chosen] = 0.0
        self.steps[:, chosen] = 0.0


class Bayes:
    """Normal values of known noise; the mean after a change is anything, most likely small."""

    SPREAD = 0.1
    """How large means are expected to be after a change."""

    def __init__(self, num_series: int, tuning: Tuning) -> None:
        self.tuning = tuning
        self._num_series = num_series
        shape = (num_series, tuning.memory)
        self.weight: Array = np.zeros(shape)
        """How likely the last change was k steps ago; the last column holds all older ones."""
        self.sums: Array = np.zeros(shape)
        self.counts: Array = np.zeros(shape)
        self.clear(np.ones(num_series, dtype=np.bool_))

    def update(self, values: Array, noise: Array) -> ShiftTest:
        tuning = self.tuning
        value = cut(values, noise, tuning)[:, None]
        # Cut values are not normal ones: a noise of a sixth of the cut keeps outliers harmless.
        variance = np.maximum(noise, tuning.clip / 6)[:, None] ** 2
        mean, spread = self._means(variance)
        total = variance + spread
        likely = np.exp(-0.5 * (value - mean) ** 2 / total) / np.sqrt(total)
        self._shift(self.weight * likely, value)
        mean, spread = self._means(variance)
        tolerance = np.maximum(tuning.tolerance, tuning.tolerance_noise * noise)[:, None]
        above = (self.weight * ndtr((mean - tolerance) / np.sqrt(spread))).sum(axis=1)
        below = (self.weight * ndtr((-mean - tolerance) / np.sqrt(spread))).sum(axis=1)
        steps = 1 + np.argmax(self.weight, axis=1).astype(np.int64)
        return ShiftTest(above > tuning.certainty, below > tuning.certainty, steps)

    def _means(self, variance: Array) -> tuple[Array, Array]:
        """Mean since the change and its variance, for every time of the change."""
        spread = 1.0 / (1.0 / self.SPREAD**2 + self.counts / variance)
        return spread * self.sums / variance, spread

    def _shift(self, weight: Array, value: Array) -> None:
        """One step on: everything is a step older, and a change may have happened just now."""
        weight = weight / weight.sum(axis=1, keepdims=True)
        sums, counts = self.sums + value, self.counts + 1.0
        old = weight[:, -2:].sum(axis=1)
        share = weight[:, -2:] / np.maximum(old, 1e-300)[:, None]
        for array, now in ((self.sums, sums), (self.counts, counts)):
            array[:, -1] = (share * now[:, -2:]).sum(axis=1)
            array[:, 1:-1] = now[:, :-2]
            array[:, 0] = 0.0
        hazard = self.tuning.hazard
        self.weight[:, -1] = old * (1 - hazard)
        self.weight[:, 1:-1] = weight[:, :-2] * (1 - hazard)
        self.weight[:, 0] = hazard

    def clear(self, chosen: Flags) -> None:
        """As after a long quiet time: the mean is known to be zero."""
        self.weight[chosen], self.sums[chosen], self.counts[chosen] = 0.0, 0.0, 0.0
        self.weight[chosen, -1], self.counts[chosen, -1] = 1.0, 1000.0


TESTS: dict[str, type[PageHinkley] | type[Bayes]] = {"page-hinkley": PageHinkley, "bayes": Bayes}
