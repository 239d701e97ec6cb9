"""Which events are lines on the screen: three for a failure, and nothing that flaps.

What was lost; what was done and what it cost; when it is whole again. How it was decided, what was
considered and left, and intervals that go up and down are in the journal; -v shows them.
"""

from holdfast.observe.events import (
    Decided,
    Event,
    PlanChanged,
    PlanConsidered,
    Recovered,
    Restored,
    SlownessJudged,
    WorkerLost,
)
from holdfast.observe.progress import describe_event

SNAPSHOT_EVERY, CHECKPOINT_EVERY = "every", "every_s"
"""The details of decisions about these intervals."""


class ScreenLines:
    def __init__(self, *, is_verbose: bool = False) -> None:
        self._is_verbose = is_verbose
        self._last = ""
        self._rarest = 1
        self._lost_together: list[set[str]] = []
        """Workers that one recovery had to do without, and that are not back."""

    def line(self, event: Event) -> str:
        """Empty: there is none."""
        line = describe_event(event)
        is_shown = self._is_shown(event)  # always asked: it remembers
        # A lost node is one line, however many workers it had.
        is_said = isinstance(event, WorkerLost) and line == self._last
        self._last = line or self._last
        return line if self._is_verbose or (is_shown and not is_said) else ""

    def _is_shown(self, event: Event) -> bool:
        match event:
            case Recovered(lost=lost) if lost:
                self._lost_together.append(set(lost))
            case Restored(workers=workers):
                self._is_whole(workers)
            case PlanChanged(joining=joining) if joining:
                return self._is_whole(joining)
            case PlanConsidered(entered=entered):
                return entered
            case SlownessJudged(verdict=verdict):
                return verdict not in ("suspect", "cleared")
            case Decided(details=details) if SNAPSHOT_EVERY in details:
                return self._is_rarer(int(details[SNAPSHOT_EVERY]))
            case Decided(details=details):
                return CHECKPOINT_EVERY not in details
        return True

    def _is_whole(self, back: tuple[str, ...]) -> bool:
        """Are all that were lost together with one of these back, or were these not lost?"""
        touched = [lost for lost in self._lost_together if not lost.isdisjoint(back)]
        for lost in touched:
            lost.difference_update(back)
        self._lost_together = [lost for lost in self._lost_together if lost]
        return not touched or not all(touched)

    def _is_rarer(self, every: int) -> bool:
        """Than it was said to be before."""
        is_rarer, self._rarest = every > self._rarest, max(every, self._rarest)
        return is_rarer
