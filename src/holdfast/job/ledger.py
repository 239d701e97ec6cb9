"""What all workers say, put together: one event per step and per change.

Pure bookkeeping. A step counts when every worker of its plan has reported it, a change when
everybody of both plans has. All reports of a step must agree: the loss is one number given to
everybody, and, where the run verifies itself, so is every checksum of what several workers hold.
"""

from collections.abc import Iterable
from math import isfinite

from holdfast.engine.mesh import needed_groups
from holdfast.engine.trainer import ChangeReport, StepReport
from holdfast.errors import invariant
from holdfast.job.prepare import Job
from holdfast.observe.events import Event, PlanChanged, StepDone, StepSkipped
from holdfast.observe.run_directory import plan_name
from holdfast.observe.timeline_view import describe_shape
from holdfast.plan.plan import Plan


class HoldersDiffer(Exception):
    """Two workers disagree on something that must be the same on both."""


class Ledger:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.next_step = 0
        """The first that is not complete."""
        self._steps: dict[int, dict[str, StepReport]] = {}
        self._changes: dict[int, dict[str, ChangeReport]] = {}
        self._num_changed = 0
        self._sums: dict[tuple[int, str], tuple[str, int]] = {}

    def add_step(self, worker: str, report: StepReport) -> list[Event]:
        """What is known now that was not before."""
        reports = self._steps.setdefault(report.step, {})
        invariant(worker not in reports, f"{worker} reports step {report.step} twice")
        for other, first in list(reports.items())[:1]:
            _compare_outcomes(other, first, worker, report)
        self._compare_checksums(worker, report)
        reports[worker] = report
        return self._settle()

    def add_change(self, worker: str, report: ChangeReport) -> list[Event]:
        self._changes.setdefault(report.epoch, {})[worker] = report
        return self._settle()

    def _settle(self) -> list[Event]:
        """Complete changes and steps, in their order."""
        events: list[Event] = []
        while (found := self._next_change() or self._next_steps()) is not None:
            events += found
        return events

    def _next_change(self) -> list[Event] | None:
        epoch = self._num_changed + 1
        if epoch >= len(self._job.plans):
            return None
        reports = self._changes.get(epoch, {})
        before, after = (self._job.plans[n].plan for n in (epoch - 1, epoch))
        if not {*before.workers, *after.workers} <= reports.keys():
            return None
        self._num_changed = epoch
        del self._changes[epoch]
        return [self._changed(epoch, before, after, list(reports.values()))]

    def _changed(
        self, epoch: int, before: Plan, after: Plan, reports: list[ChangeReport]
    ) -> PlanChanged:
        transition = self._job.transitions[epoch - 1]
        kept, made = count_groups(before, after, self._job.backend)
        return PlanChanged(
            reason=f"the job file says so: [[change]] at_step = {reports[0].step}",
            epoch=epoch,
            step=reports[0].step,
            shape=describe_shape(after),
            num_workers=len(after.workers),
            joining=transition.joining,
            leaving=transition.leaving,
            stall_s=max(report.stall_s for report in reports),
            bytes_moved=sum(report.bytes_received for report in reports),
            groups_kept=kept,
            groups_made=made,
            file=plan_name(epoch),
        )

    def _next_steps(self) -> list[Event] | None:
        reports = self._steps.get(self.next_step, {})
        if not reports:
            return None
        epoch = next(iter(reports.values())).epoch
        if epoch > self._num_changed:
            return None
        if not reports.keys() >= set(self._job.plans[epoch].plan.workers):
            return None
        step = self.next_step
        self.next_step += 1
        del self._steps[step]
        self._sums = {key: value for key, value in self._sums.items() if key[0] != step}
        return list(_step_events(reports.values()))

    def _compare_checksums(self, worker: str, report: StepReport) -> None:
        for key, value in report.checksums.items():
            other, expected = self._sums.setdefault((report.step, key), (worker, value))
            if value != expected:
                unit = self._job.plans[report.epoch].plan.units[int(key.partition("/")[0])]
                raise HoldersDiffer(
                    f"{other} and {worker} differ in {unit.name} after step {report.step}: "
                    f"checksums {expected:x} and {value:x} of what both hold"
                )


def _step_events(reports: Iterable[StepReport]) -> list[Event]:
    reports = list(reports)
    first, seconds = reports[0], max(report.seconds for report in reports)
    done = StepDone(
        step=first.step,
        epoch=first.epoch,
        loss=_finite(first.loss),
        norm=_finite(first.norm),
        tokens=first.num_tokens,
        tokens_per_s=first.num_tokens / seconds,
        step_time_s=seconds,
        learning_rate=first.learning_rate,
        applied=first.applied,
    )
    if first.applied:
        return [done]
    return [done, StepSkipped(step=first.step, reason="loss or gradients were not finite")]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _compare_outcomes(other: str, first: StepReport, worker: str, report: StepReport) -> None:
    for field in ("epoch", "loss", "norm", "num_tokens", "applied"):
        mine, theirs = getattr(report, field), getattr(first, field)
        if repr(mine) != repr(theirs):  # by their digits: not-a-number equals itself here
            raise HoldersDiffer(
                f"{other} and {worker} differ in the {field} of step {report.step}: "
                f"{theirs!r} and {mine!r}"
            )


def count_groups(before: Plan, after: Plan, backend: str) -> tuple[int, int]:
    """(kept, made): groups of the new plan that were there, and that were not."""

    def groups(plan: Plan) -> set[object]:
        return {key for worker in plan.workers for key in needed_groups(plan, worker, backend)}

    old, new = groups(before), groups(after)
    return len(old & new), len(new - old)
