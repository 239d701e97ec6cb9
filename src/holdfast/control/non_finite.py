"""What becomes of steps whose loss or gradients are not finite. No worker applies such a step.

    skip      the job goes on with the next one
    stop      it ends
    go_back   it goes back to the last good version, and computes the step again

A version is good if the step that followed it was finite. Three things can be at the bottom of it.
A passing fault (a flipped bit) does not come again. State that was damaged is replaced by that of
the good version. A batch that cannot be computed gives the same again: it is left out, as by
`skip`, and the job goes on. If steps after it fail, too, the state was bad for longer: an older
version is tried, a few times, and then the job ends.
"""

from collections.abc import Callable

import msgspec

from holdfast.control.ending import describe_skipped
from holdfast.control.settings import NonFinitePolicy
from holdfast.control.worker_reports import StepReport


class StopAtStep(msgspec.Struct, frozen=True):
    """The job ends."""

    reason: str


class LeaveOut(msgspec.Struct, frozen=True):
    """The job goes on without this step."""

    reason: str


class GoBack(msgspec.Struct, frozen=True):
    """To the newest version with fewer steps than these."""

    before: int
    reason: str


class NonFiniteSteps:
    def __init__(
        self, policy: NonFinitePolicy, tries: int, has_version: Callable[[int], bool]
    ) -> None:
        """`tries`: how often to go back without a good step between. `has_version`: is there one to
        go back to, with fewer steps than these?
        """
        self._policy, self._tries, self._has_version = policy, tries, has_version
        self._tried: dict[int, None] = {}
        """Steps that were computed a second time, or are to be."""
        self._num_tries = 0
        self._last = -1
        """The last step that was not finite."""
        self._tried_version: int | None = None

    def take(self, report: StepReport) -> StopAtStep | LeaveOut | GoBack | None:
        """None: there is nothing to do."""
        if report.applied or not report.num_tokens:
            if report.applied and report.step >= self._last:
                self._num_tries, self._tried_version = 0, None
            return None
        what = f"step {report.step}: {describe_skipped(report)}"
        if self._policy == "skip":
            return None
        if self._policy == "stop":
            return StopAtStep(f"{what} (recovery.non_finite = 'stop')")
        self._last = max(self._last, report.step)
        if report.step in self._tried:
            return LeaveOut(f"{what}, again from a good version: its batch is left out")
        self._tried[report.step] = None
        return self._next_try(report.step, what)

    def _next_try(self, step: int, what: str) -> StopAtStep | LeaveOut | GoBack:
        if self._num_tries >= self._tries:
            return StopAtStep(
                f"{what}, and going back {self._tries} times did not help "
                f"(recovery.non_finite = 'go_back', go_back_tries = {self._tries})"
            )
        self._num_tries += 1
        before = step if self._tried_version is None else min(step, self._tried_version)
        if not self._has_version(before):
            return LeaveOut(f"{what}, and there is no good version to go back to: left out")
        return GoBack(before, what)

    def went_back(self, version: int) -> None:
        """If that does not help, it is to be an older one."""
        self._tried_version = version
