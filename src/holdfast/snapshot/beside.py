"""What copies beside computation cost: steps with a copy, compared with steps without one.

A device copies while it computes, and training waits for none of it; it may still compute more
slowly, which no wait shows. So a few of the first steps of a plan go without a copy, in turns with
others that have one, and the difference counts as if training had waited for it. Where the interval
is longer than a step, there are always some of both.

Only a step with a copy that follows one without is compared: both kinds are of the same time then.
A device gets slower as it gets warm, and batches longer, which is no cost of copies.
"""

from collections import deque
from collections.abc import Iterable

NUM_TRIALS = 9
"""Steps of each kind before the difference counts."""
_KEPT = 32


class BesideCost:
    def __init__(self) -> None:
        self._with: deque[float] = deque(maxlen=_KEPT)
        self._without: deque[float] = deque(maxlen=_KEPT)
        self._copied_before = True

    def stepped(self, seconds: float, *, copied: bool) -> None:
        if not copied:
            self._without.append(seconds)
        elif not self._copied_before:
            self._with.append(seconds)
        self._copied_before = copied

    def wants_none(self, step: int) -> bool:
        """Should this step have no copy, to compare with? All workers leave out the same ones: a
        version is of use if all have it.
        """
        return len(self._without) < NUM_TRIALS and step % 2 == 1

    @property
    def seconds(self) -> float:
        """Of one version; 0 until it is known."""
        if min(len(self._with), len(self._without)) < NUM_TRIALS:
            return 0.0
        return max(0.0, _undisturbed(self._with) - _undisturbed(self._without))


def _undisturbed(seconds: Iterable[float]) -> float:
    """The lower quartile: steps that had to wait for something else say nothing of copies."""
    ordered = sorted(seconds)
    return ordered[(len(ordered) - 1) // 4]
