"""When a job ends for want of anything better: nobody gets on any more, or (recovery.mode = "off")
a worker has failed.
"""

from holdfast.runtime.coordinator.failures import Failure, root_cause

BLAME_MS = 1000
"""How long to look for the cause behind a group that broke."""


class GivingUp:
    def __init__(self, *, is_strict: bool, patience_ms: int, now_ms: int) -> None:
        """`is_strict`: a failed worker ends the job."""
        self.is_strict, self._patience_ms = is_strict, patience_ms
        self._moved_ms = now_ms
        self._failures: list[Failure] = []
        self._failed_ms = 0

    def moved(self, now_ms: int) -> None:
        """Somebody got on."""
        self._moved_ms = now_ms

    def failed(self, failure: Failure, now_ms: int) -> None:
        """Of one worker only the first failure that is its own counts."""
        own = [other.worker for other in self._failures if not other.is_consequence]
        if self.is_strict and failure.worker not in own:
            self._failed_ms = self._failed_ms or now_ms
            self._failures.append(failure)

    def cause(self, now_ms: int) -> Failure | None:
        """The failure to end with, once it is clear or was looked for long enough."""
        if not self._failures:
            return None
        cause = root_cause(self._failures)
        is_clear = not cause.is_consequence or now_ms - self._failed_ms > BLAME_MS
        return cause if is_clear else None

    def is_stuck(self, now_ms: int) -> bool:
        return now_ms - self._moved_ms > self._patience_ms
