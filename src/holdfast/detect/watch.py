"""Many members, each beside its peers and beside its own past.

Every step gives one value per member: the logarithm of observed over predicted. From it are taken

    its baseline   what is usual for this very device, from the warm-up, then learned slowly while
                   it is healthy. With peers to compare, it may not be more than a few per cent
                   above them: a device that is slow from the first step on is slow, not usual;
    the common     the median over its class (or over all, where a class is too small to have one):
                   what happens to all is not the fault of one. A slow member stays in it, as what
                   it was found to be: without it, the median of those that are left would be
                   lower, the next one would be slow, and so on. Where most of a class have moved
                   and some have not, its work is not what has changed: then it is what those say
                   that are still as all others are, or two slow ones of three would be the measure.

What is left goes through a change test. A member whose test fires gets a *level*, how far off it
is now, and is watched from there on: up (worse), down (better). It has recovered when it has been
as its peers for some steps, by the noise it had while it was healthy: what a spiky episode has
added to its noise does not hide its end.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.special import ndtr

from holdfast.detect.change import TESTS, Flags, Test, Tuning
from holdfast.detect.workload import Array, Index

SPREAD = 1.4826
"""From the median size of normal errors to their standard deviation."""
MIN_PEERS = 3
"""A median of two blames neither."""
SPLIT = 0.1
"""So far apart, and so many times the noise, members that do the same no longer agree."""
SPLIT_NOISE = 6.0
RECENT = 16
CALM_STEPS = 5
"""As its peers for so many steps in a row: a slow member has recovered."""


class WatchTuning(msgspec.Struct, frozen=True):
    change: Tuning = Tuning()
    test: str = "page-hinkley"
    max_baseline: float = 0.03
    """Most that a device may differ from its peers and still be healthy."""
    min_level: float = 0.03
    """Less than this is not worth a verdict: it becomes part of the baseline."""
    rate: float = 0.02
    """How quickly baseline and noise follow."""
    min_noise: float = 0.002


DEFAULT = WatchTuning()


class Shift(msgspec.Struct, frozen=True):
    """A member's level has changed. Levels are logarithms; 0 is healthy."""

    member: int
    old: float
    new: float
    confidence: float
    steps: int
    noise: float


class Watch:
    def __init__(self, classes: Index, tuning: WatchTuning = DEFAULT) -> None:
        num = len(classes)
        self.tuning = tuning
        self.classes = classes
        self.baseline: Array = np.zeros(num)
        self.level: Array = np.zeros(num)
        self.noise: Array = np.full(num, 0.01)
        self.calm_noise: Array = np.full(num, 0.01)
        """The noise that it had when it was healthy last."""
        self.calm: Index = np.zeros(num, dtype=np.int64)
        """Of slow members: for how many steps it has been as its peers."""
        self.recent: Array = np.zeros((RECENT, num))
        """The last values of every member, newest first."""
        self.common: Array = np.zeros(RECENT)
        """Median over all members, newest first."""
        self.test: Test = TESTS[tuning.test](num, tuning.change)
        self._peers = _Peers(classes)

    def calibrate(self, values: Array) -> None:
        """From the warm-up: one row per step, NaN where nothing was reported. How noisy a member is
        with these devices, this work and what is known of it, is not assumed but seen.
        """
        seen = (~np.isnan(values)).sum(axis=0)
        known = seen >= MIN_PEERS
        if not known.any():
            return
        rows = np.where(known, values, 0.0)
        usual = np.nanmedian(rows, axis=0)
        common, _ = self._peers.medians(usual, known, self._split())
        spread = rows - usual
        shared = np.nanmedian(np.where(known, spread, np.nan), axis=1)
        if int(known.sum()) >= MIN_PEERS:
            spread = spread - shared[:, None]
        found = SPREAD * np.nanmedian(np.abs(spread), axis=0)
        # Of few steps a spread is easily too small; those of its peers say more.
        noise = np.maximum(found, float(np.median(found[known])))
        self.noise = np.where(known, np.maximum(self.tuning.min_noise, noise), self.noise)
        self.calm_noise = self.noise.copy()
        self.baseline = np.where(known, np.minimum(usual - common, self._limit()), self.baseline)

    def update(self, values: Array) -> list[Shift]:
        """One step. A member without a value (NaN) stays as it is."""
        present = ~np.isnan(values)
        own = np.where(present, values - self.baseline, 0.0)
        common, of_all = self._peers.medians(own - self.level, present, self._split())
        own = np.where(present, own - common, self.level)
        self._remember(own, of_all)
        change = self.test.update(own - self.level, self.noise)
        recovered = self._count_calm(own, present)
        fired: Flags = (change.above | change.below) & present & ~recovered
        shifts = [self._settle(i, int(change.steps[i])) for i in np.flatnonzero(fired).tolist()]
        shifts += [self._recover(i) for i in np.flatnonzero(recovered).tolist()]
        fired |= recovered
        if shifts:
            self.test.clear(fired)
        self._follow(own, present & ~fired)
        return [shift for shift in shifts if shift.new != shift.old]

    def _split(self) -> float:
        return SPLIT + SPLIT_NOISE * float(np.median(self.noise)) if len(self.noise) else SPLIT

    def _remember(self, own: Array, of_all: float) -> None:
        self.recent[1:] = self.recent[:-1].copy()
        self.recent[0] = own
        self.common[1:] = self.common[:-1].copy()
        self.common[0] = of_all

    def _count_calm(self, own: Array, present: Flags) -> Flags:
        """Which slow members have been as their peers for long enough?"""
        limit = np.maximum(self.tuning.min_level, 2 * self.calm_noise)
        is_calm = own < np.minimum(limit, self.level / 2)
        self.calm = np.where(
            self.level > 0, np.where(present, np.where(is_calm, self.calm + 1, 0), self.calm), 0
        )
        return self.calm >= CALM_STEPS

    def _recover(self, member: int) -> Shift:
        old, noise = float(self.level[member]), float(self.calm_noise[member])
        self.level[member], self.calm[member] = 0.0, 0
        self.noise[member] = noise
        margin = (old / 2) * np.sqrt(CALM_STEPS) / max(noise, 1e-6)
        return Shift(member, old, 0.0, min(float(ndtr(margin)), 0.9999), CALM_STEPS, noise)

    def _settle(self, member: int, steps: int) -> Shift:
        """The new level is the median since the excursion began, so that one outlier in it does
        not set the factor.
        """
        steps = max(3, min(steps, RECENT))
        old = float(self.level[member])
        now = float(np.median(self.recent[:steps, member]))
        noise = float(self.noise[member])
        if now < self.tuning.min_level:
            self.baseline[member] += self._allowed(member, now)
            now = 0.0
        self.level[member] = now
        margin = abs(now - old) - self.tuning.change.tolerance
        confidence = float(ndtr(margin * np.sqrt(steps) / max(noise, 1e-6)))
        return Shift(member, old, now, min(confidence, 0.9999), steps, noise)

    def _allowed(self, member: int, change: float) -> float:
        limit = self._limit()[member]
        return float(min(self.baseline[member] + change, limit) - self.baseline[member])

    def _limit(self) -> Array:
        """A device may be as fast as it likes."""
        return np.where(self._peers.has_peers, self.tuning.max_baseline, np.inf)

    def _follow(self, own: Array, chosen: Flags) -> None:
        """Baseline and noise of the healthy follow what they do; one step moves them little."""
        tuning = self.tuning
        error = own - self.level
        step = np.clip(error, -2 * self.noise, 2 * self.noise)
        healthy = chosen & (self.level == 0.0)
        moved = np.minimum(self.baseline + tuning.rate * step, self._limit())
        self.baseline = np.where(healthy, moved, self.baseline)
        # Of a normal error cut at three sigma the mean size is 0.79 sigma.
        size = np.minimum(np.abs(error), 3 * self.noise) / 0.79
        noise = np.maximum(tuning.min_noise, self.noise + tuning.rate * (size - self.noise))
        self.noise = np.where(chosen, noise, self.noise)
        self.calm_noise = np.where(healthy, self.noise, self.calm_noise)

    def inherit(self, other: "Watch", pairs: Sequence[tuple[int, int]]) -> None:
        """Take over what is known of members that another one watched: (number here, number
        there).
        """
        for mine, theirs in pairs:
            self.baseline[mine] = other.baseline[theirs]
            self.level[mine] = other.level[theirs]
            self.noise[mine] = other.noise[theirs]
            self.calm_noise[mine] = other.calm_noise[theirs]
            self.recent[:, mine] = other.level[theirs]

    def presume(self, member: int, factor: float) -> None:
        """Before the first step: it is known to take so many times longer."""
        self.level[member] = self.recent[:, member] = np.log(factor)

    def widen(self, members: Flags, noise: float) -> None:
        """What these do is known only so well for now."""
        for array in (self.noise, self.calm_noise):
            array[members] = np.maximum(array[members], noise)

    def forget(self, member: int) -> None:
        """As at the beginning."""
        self.baseline[member], self.level[member], self.calm[member] = 0.0, 0.0, 0
        self.noise[member] = self.calm_noise[member] = float(np.median(self.noise))
        self.recent[:, member] = 0.0
        self.test.clear(np.arange(len(self.level)) == member)

    def factor(self) -> Array:
        """How many times longer than the model says every member takes."""
        return np.exp(self.baseline + self.level)


class _Peers:
    """Medians per class, by sorting one padded table."""

    def __init__(self, classes: Index) -> None:
        sizes = np.bincount(classes) if len(classes) else np.zeros(0, dtype=np.int64)
        width = int(sizes.max()) if len(sizes) else 0
        self.classes = classes
        self.table: Index = np.full((len(sizes), width), len(classes), dtype=np.int64)
        for number in range(len(sizes)):
            self.table[number, : sizes[number]] = np.flatnonzero(classes == number)
        self.alone = len(classes) < MIN_PEERS
        self.has_peers: Flags = sizes[classes] >= MIN_PEERS if len(classes) else classes > 0

    def medians(self, values: Array, chosen: Flags, split: float) -> tuple[Array, float]:
        """The common part per member, and of all. Too few: zero. Members of a class that are
        `split` apart do not agree.
        """
        if self.alone:
            return np.zeros(len(values)), 0.0
        padded = np.append(np.where(chosen, values, np.inf), np.inf)
        rows = np.sort(padded[self.table], axis=1)
        counts = np.isfinite(rows).sum(axis=1)
        number = np.arange(len(rows))
        low = rows[number, np.maximum(counts - 1, 0) // 2]
        high = rows[number, np.minimum(counts // 2, rows.shape[1] - 1)]
        of_all = float(np.median(values[chosen])) if int(chosen.sum()) >= MIN_PEERS else 0.0
        enough = counts >= MIN_PEERS
        middle = np.where(enough, 0.0, of_all)
        middle[enough] = (low[enough] + high[enough]) / 2
        quarter = np.maximum(counts - 1, 0) // 4
        for end in (quarter, np.maximum(counts - 1, 0) - quarter):
            unmoved = np.where(enough, rows[number, end], of_all)
            apart = np.abs(middle - unmoved) > split
            middle = np.where(
                apart & (np.abs(unmoved - of_all) < np.abs(middle - of_all)), unmoved, middle
            )
        return middle[self.classes], of_all
