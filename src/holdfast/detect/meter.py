"""The worker's side: add up what was measured in a step, report it once.

This runs in the training process, so it is as cheap as a sum: what things should have taken is
the coordinator's question. Messages are kept one by one until the end of the step, because their
median is robust and their sum is not.
"""

from collections.abc import Sequence
from statistics import median_low

from holdfast.detect.facts import PathReport, WorkerTimes


class StepMeter:
    """Times of one worker since the last report."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._times: dict[str, float] = {}
        self._paths: dict[tuple[tuple[str, ...], int], list[float]] = {}
        self._ended = 0.0

    def computed(self, kind: str, seconds: float, ended: float = 0.0) -> None:
        """A computation of `kind` took `seconds` and ended at `ended` in the step."""
        self._times[kind] = self._times.get(kind, 0.0) + seconds
        self._ended = max(self._ended, ended)

    def moved(self, members: tuple[str, ...], num_bytes: int, seconds: float) -> None:
        """A message or reduction took `seconds` once all its ends were ready."""
        self._paths.setdefault((members, num_bytes), []).append(seconds)

    def report(self) -> tuple[WorkerTimes, Sequence[PathReport]]:
        """What was added up; the meter starts anew."""
        worker = WorkerTimes(self.worker, self._times, self._ended)
        paths = [
            PathReport(members, num_bytes, median_low(times))
            for (members, num_bytes), times in self._paths.items()
        ]
        self._times, self._paths, self._ended = {}, {}, 0.0
        return worker, paths
