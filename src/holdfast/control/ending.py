"""How a job ends: with what outcome, and when it is given up.

Given up it is when there was no sign of progress for too long, or, where failures are not recovered
from, when a worker fails. A worker that dies takes its groups along, and its peers then fail, too,
often before the death itself is reported. What counts is the first failure that is not merely a
consequence.
"""

from collections.abc import Sequence

import msgspec

from holdfast.control.journal_entries import StopAsked
from holdfast.control.worker_reports import StepReport

BLAME_MS = 1000
"""How long to look for the cause behind a group that broke."""


class Failure(msgspec.Struct, frozen=True):
    worker: str
    why: str
    """As in "worker n0.g1 ...": an exit status, or what it said itself."""
    is_consequence: bool


def said(worker: str, line: str, is_consequence: bool = False) -> Failure:
    """A process that told its error."""
    return Failure(worker, f"failed: {line}", is_consequence)


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The first that no other explains; if all are consequences, the first of them."""
    return next((failure for failure in failures if not failure.is_consequence), failures[0])


def outcome_at(version: int, num_steps: int, stop: StopAsked | None) -> tuple[str, str]:
    """Outcome and reason of a job that is over with this version."""
    if num_steps and version >= num_steps:
        return "finished", f"all {num_steps} steps are done"
    return "stopped", f"{stop.reason if stop else 'asked for'}, at a step boundary"


def describe_skipped(report: StepReport) -> str:
    """Why a step was applied by no worker."""
    if not report.num_tokens:
        return "no target counts"
    return f"loss {report.loss:g} or gradient norm {report.norm:g} is not finite"


class GivingUp:
    def __init__(self, *, is_strict: bool, patience_ms: int, now_ms: int) -> None:
        """`is_strict`: a failed worker ends the job. `patience_ms`: 0 = endless."""
        self.is_strict, self._patience_ms = is_strict, patience_ms
        self._moved_ms = now_ms
        self._failures: list[Failure] = []
        self._failed_ms = 0
        self.last_words = ""
        """Of the last worker that said why it ended."""

    @property
    def has_failures(self) -> bool:
        return bool(self._failures)

    def moved(self, now_ms: int) -> None:
        """There was a sign of progress, or nothing but to wait."""
        self._moved_ms = max(self._moved_ms, now_ms)

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
        return 0 < self._patience_ms < now_ms - self._moved_ms

    def deadlines_ms(self) -> list[int]:
        found = [self._moved_ms + self._patience_ms + 1] if self._patience_ms else []
        return [*found, self._failed_ms + BLAME_MS + 1] if self._failures else found
