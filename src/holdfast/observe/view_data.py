"""What the page is given of a run: all of it once, and then what is new."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.observe.run.load import RunFollower
from holdfast.observe.run.summary import (
    summarise,
    summarise_incidents,
    summarise_notes,
    unsettled,
)

POINTS = 3000
"""Steps in a chart, about; more are asked for when one zooms in."""
POINTS_ALONE = 12_000
"""In a file that cannot ask."""
LEAST_S = 0.1
"""Files are not read more often."""


class RunFeed:
    """A run directory and its model, read when asked."""

    def __init__(self, follower: RunFollower, clock: Callable[[], float] = time.time) -> None:
        self._follower, self._clock = follower, clock
        self._read_s = 0.0
        self.run_dir: Path = follower.run_dir

    @property
    def follower(self) -> RunFollower:
        """Up to date."""
        now_s = self._clock()
        if now_s - self._read_s >= LEAST_S:
            self._read_s = now_s
            self._follower.poll()
        return self._follower

    def head(self) -> dict[str, Any]:
        follower = self.follower
        return summarise(follower.model, follower.roles(), self._clock())

    def all(self, most: int = POINTS) -> dict[str, Any]:
        run = self.follower.model
        return {
            "run": self.head(),
            "incidents": summarise_incidents(run),
            "notes": summarise_notes(run),
            "points": run.series.thinned(most),
        }

    def points(self, start_s: float | None, end_s: float | None) -> dict[str, Any]:
        return self.follower.model.series.thinned(POINTS, start_s, end_s)


class NewsReader:
    """One reader's place in a feed."""

    def __init__(self, feed: RunFeed) -> None:
        self._feed = feed
        self._changed = -1
        self._num_steps = self._num_notes = self._num_incidents = 0
        self._unsettled: list[int] = []

    def first(self) -> dict[str, Any]:
        found = self._feed.all()
        self._note()
        return found

    def news(self) -> dict[str, Any] | None:
        """What is new; None: nothing."""
        run = self._feed.follower.model
        if run.num_changed == self._changed:
            return None
        found = {
            "run": self._feed.head(),
            "incidents": summarise_incidents(
                run, [*self._unsettled, *range(self._num_incidents, len(run.incidents))]
            ),
            "notes": summarise_notes(run, self._num_notes),
            "points": run.series.since(self._num_steps),
        }
        self._note()
        return found

    @property
    def is_over(self) -> bool:
        return self._feed.follower.model.ended is not None

    def _note(self) -> None:
        run = self._feed.follower.model
        self._changed = run.num_changed
        self._num_steps, self._num_notes = len(run.series), len(run.notes)
        self._num_incidents = len(run.incidents)
        self._unsettled = unsettled(run)
