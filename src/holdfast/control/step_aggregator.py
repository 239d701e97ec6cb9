"""What all workers report, put together: one event per step and per change of epoch.

An epoch is known from its order. A step counts when all workers have reported it that have a seat
in the epoch that agreed on it and are not lost since; an epoch has begun when all of them have
entered it. All reports of a step must agree: the loss is one number given to all, and, where the
run verifies itself, so is every checksum of what several workers hold.

Reports may come again (from agents that do not know what a coordinator before this one has written
down) and are left out then.
"""

from collections.abc import Iterable

import msgspec

from holdfast.control.facts import Fact, StepReported
from holdfast.control.job_events import (
    EpochEntered,
    EpochReport,
    JobEvent,
    Recorded,
    StepCompleted,
    StepsUnrecorded,
)
from holdfast.control.journal_entries import Dropped, Fenced, JournalEntry, Ordered
from holdfast.control.journal_state import JournalState
from holdfast.control.order import Order
from holdfast.control.worker_reports import StepReport
from holdfast.plan.plan import Plan


class HoldersDiffer(Exception):
    """Two workers disagree on something that must be the same on both."""


class KnownEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known of an order."""

    number: int
    kind: str
    """As in control/order.py."""
    plan: Plan
    reason: str
    before: int | None = None
    """The epoch it follows; None: it is the first."""


EpochReports = dict[str, EpochReport]
"""By worker."""


class StepAggregator:
    def __init__(self, next_step: int = 0) -> None:
        self.next_step = next_step
        """The first that is not complete."""
        self.epoch = -1
        """The last that all have entered."""
        self._epochs: dict[int, KnownEpoch] = {}
        self._lost: dict[str, int] = {}
        """Worker -> the last epoch that does not wait for it."""
        self._steps: dict[int, dict[str, StepReport]] = {}
        self._changes: dict[int, EpochReports] = {}
        self._undone: dict[int, int] = {}
        """By the order that says so: from which step on no older epoch's word counts."""
        self._redone: dict[int, int] = {}
        """By the epoch that begins with it: how many steps are done again."""
        self._sums: dict[tuple[int, str], tuple[str, int]] = {}
        self._late: dict[tuple[int, int], tuple[str, StepReport]] = {}
        """By step and epoch: a report of a worker that was fenced when it came."""

    # What is known beforehand.

    def note(
        self, entry: JournalEntry, journal: JournalState, before: Order | None
    ) -> list[JobEvent]:
        """An entry of the journal, which `journal` has; `before`: the last order before it."""
        match entry:
            case Ordered(order=order, step=step):
                if order.kind != "change":
                    self.rewind(step, order.number)
                known = KnownEpoch(
                    number=order.number,
                    kind=order.kind,
                    plan=journal.plans[order.number],
                    reason=order.reason,
                    before=before.number if before is not None else None,
                )
                return self.begin(known)
            case Dropped(number=number):
                self.drop(number)
            case Fenced(member=member):
                return self.lose(member.name)
        return []

    def resume(self, recorded: Recorded) -> None:
        """Go on where the run log ends. Steps that were undone since are not done again in it."""
        undone = [step for order, step in self._undone.items() if recorded.step_epoch < order]
        self.next_step = min([recorded.next_step, *undone])
        self.begun(max(self.epoch, recorded.epoch))

    def begin(self, epoch: KnownEpoch) -> list[JobEvent]:
        """An order was given. A start has begun without any report."""
        self._lose_unseated(epoch)
        self._epochs[epoch.number] = epoch
        if epoch.kind == "start" or (epoch.before is None and epoch.kind != "restore"):
            self.begun(epoch.number)
        return self._settle()

    def _lose_unseated(self, epoch: KnownEpoch) -> None:
        """A worker that lives, but has no seat after a recovery, because others of its replica were
        lost, may have missed the end of a step, and never catches up.
        """
        before = self._epochs.get(epoch.before) if epoch.before is not None else None
        if epoch.kind == "recover" and before is not None:
            for name in before.plan.workers:
                if name not in epoch.plan.seats:
                    self._lost[name] = max(self._epochs)

    def begun(self, number: int) -> None:
        """All were seen in this epoch, by a coordinator before this one."""
        self.epoch = number
        self._changes = {n: told for n, told in self._changes.items() if n > number}

    def drop(self, number: int) -> None:
        """An order that no worker will enter."""
        self._epochs.pop(number, None)
        self._changes.pop(number, None)

    def lose(self, worker: str) -> list[JobEvent]:
        """It will not report any more, unless it joins in an epoch to come."""
        self._lost[worker] = max(self._epochs, default=-1)
        return self._settle()

    def rewind(self, step: int, epoch: int) -> None:
        """The job goes on from this step in this epoch: what older ones say of it and of those
        after it does not count. A fenced worker may have ended the step in flight on its own.
        """
        self._undone[epoch] = step
        self._redone[epoch] = max(0, self.next_step - step)
        self.next_step = min(self.next_step, step)
        self._steps = {s: reports for s, reports in self._steps.items() if s < step}
        self._sums = {key: value for key, value in self._sums.items() if key[0] < step}
        self._use_late(step)
        self._late.clear()

    # What is told.

    def add_late(self, worker: str, fact: Fact) -> list[JobEvent]:
        """Of a worker that is fenced: its agent tells again what no coordinator has recorded. It
        may have ended the step in flight on its own, so its word counts for the steps before the
        one from which a later order goes on, and there only if no other worker has said it.
        """
        if not isinstance(fact, StepReported) or fact.report.step < self.next_step:
            return []
        self._late[fact.report.step, fact.report.epoch] = (worker, fact.report)
        later = (s for order, s in self._undone.items() if order > fact.report.epoch)
        self._use_late(max(later, default=0))
        return self._settle()

    def _use_late(self, before_step: int) -> None:
        for (step, epoch), (worker, report) in list(self._late.items()):
            if step < before_step:
                del self._late[step, epoch]
                is_new = step >= self.next_step and step not in self._steps
                if is_new and not self._is_undone(report):
                    self._steps[step] = {worker: report}

    def add_step(self, worker: str, report: StepReport) -> list[JobEvent]:
        """What is known now that was not before."""
        reports = self._steps.setdefault(report.step, {})
        if report.step < self.next_step or worker in reports or self._is_undone(report):
            if not reports:
                del self._steps[report.step]
            return []
        for other, first in list(reports.items())[:1]:
            _compare_outcomes(other, first, worker, report)
        self._compare_checksums(worker, report)
        reports[worker] = report
        return self._settle()

    def _is_undone(self, report: StepReport) -> bool:
        """Of a history that was given up; told again by an agent that does not know."""
        return any(
            report.epoch < epoch and report.step >= step for epoch, step in self._undone.items()
        )

    def add_change(self, worker: str, report: EpochReport) -> list[JobEvent]:
        if report.epoch > self.epoch:
            self._changes.setdefault(report.epoch, {})[worker] = report
        return self._settle()

    def _settle(self) -> list[JobEvent]:
        """Complete changes and steps, in their order."""
        events: list[JobEvent] = []
        while (found := self._next_change() or self._next_steps()) is not None:
            events += found
        return events

    def _is_complete(
        self, number: int, workers: Iterable[str], reports: dict[str, StepReport] | EpochReports
    ) -> bool:
        return all(w in reports for w in workers if self._lost.get(w, -1) < number)

    def _next_change(self) -> list[JobEvent] | None:
        for number in sorted(self._changes):
            epoch = self._epochs.get(number)
            if epoch is None:
                continue
            before = self._epochs.get(epoch.before) if epoch.before is not None else None
            if before is None and epoch.kind != "restore":
                continue
            leaving = before.plan.workers if before and epoch.kind == "change" else ()
            reports = self._changes[number]
            if self._is_complete(number, (*epoch.plan.workers, *leaving), reports):
                event = self._entered(epoch, before, reports)
                self.epoch = number
                # Earlier ones that came to nothing are not waited for any more.
                self._changes = {n: r for n, r in self._changes.items() if n > number}
                return [event]
        return None

    def _entered(
        self, epoch: KnownEpoch, before: KnownEpoch | None, reports: EpochReports
    ) -> EpochEntered:
        seats = self._seated_since_begun(before) if before is not None else ()
        return EpochEntered(
            number=epoch.number,
            before=before.number if before is not None else None,
            reason=epoch.reason,
            reports=reports,
            lost=tuple(name for name in seats if name not in epoch.plan.seats),
            steps_redone=self._redone.get(epoch.number, 0),
        )

    def _seated_since_begun(self, epoch: KnownEpoch) -> list[str]:
        """The workers with a seat in this epoch, or in one before it that came to nothing because
        more were lost on the way: back to the last that all have entered.
        """
        names = dict.fromkeys(epoch.plan.workers)
        while epoch.number > self.epoch and epoch.before in self._epochs:
            epoch = self._epochs[epoch.before]
            names |= dict.fromkeys(epoch.plan.workers)
        return sorted(names)

    def _next_steps(self) -> list[JobEvent] | None:
        if not self._is_reported(self.next_step):
            return self._pass_over()
        return [self._complete()]

    def _complete(self) -> StepCompleted:
        """The next step, with the reports that there are of it."""
        step, reports = self.next_step, self._steps.pop(self.next_step)
        self.next_step += 1
        self._sums = {key: value for key, value in self._sums.items() if key[0] != step}
        first = next(iter(reports.values()))
        seconds = max(report.seconds for report in reports.values())
        measured = {name: r.measured for name, r in reports.items() if r.measured is not None}
        return StepCompleted(first, seconds, measured)

    def _is_reported(self, step: int) -> bool:
        """By all that are waited for: none but the first, where the job went on from a later step
        since. A worker that had not done it when state was restored never does.
        """
        reports = self._steps.get(step, {})
        if not reports:
            return False
        number = self._epoch_of(step)
        epoch = self._epochs.get(number)
        if epoch is None or number > self.epoch:
            return False
        return step < self._final or self._is_complete(number, epoch.plan.workers, reports)

    def _epoch_of(self, step: int) -> int:
        """That of a step that was told."""
        return next(iter(self._steps[step].values())).epoch

    @property
    def _final(self) -> int:
        """The job has gone on from this step, and all have seen it. Only the newest order says so:
        a rollback takes back how far the job was before.
        """
        seen = [order for order in self._undone if order <= self.epoch]
        return self._undone[max(seen)] if seen else 0

    def _pass_over(self) -> list[JobEvent] | None:
        """Steps before that of which all reports went with their nodes."""
        later = [step for step in sorted(self._steps) if step > self.next_step]
        is_lost = self.next_step < self._final and not self._steps.get(self.next_step)
        if not is_lost or not any(self._is_reported(step) for step in later):
            return None
        return [self._unrecorded_until(min(self._final, later[0]))]

    def conclude(self, version: int) -> list[JobEvent]:
        """The job is over after `version` steps, and no report comes any more: those that one
        worker has told count, the others are lost, and those of an epoch that is not known to have
        begun.
        """
        events: list[JobEvent] = []
        told = [step for step in sorted(self._steps) if self.next_step <= step < version]
        for step in [s for s in told if self._epoch_of(s) <= self.epoch]:
            if step > self.next_step:
                events.append(self._unrecorded_until(step))
            events.append(self._complete())
        if self.next_step < version:
            events.append(self._unrecorded_until(version))
        return events

    def _unrecorded_until(self, step: int) -> StepsUnrecorded:
        first, self.next_step = self.next_step, step
        return StepsUnrecorded(first, step - 1)

    def _compare_checksums(self, worker: str, report: StepReport) -> None:
        for key, value in report.checksums.items():
            other, expected = self._sums.setdefault((report.step, key), (worker, value))
            if value != expected:
                unit = self._epochs[report.epoch].plan.units[int(key.partition("/")[0])]
                raise HoldersDiffer(
                    f"{other} and {worker} differ in {unit.name} after step {report.step}: "
                    f"checksums {expected:x} and {value:x} of what both hold"
                )


def _compare_outcomes(other: str, first: StepReport, worker: str, report: StepReport) -> None:
    for field in ("epoch", "loss", "norm", "num_tokens", "applied", "eval_loss"):
        mine, theirs = getattr(report, field), getattr(first, field)
        if repr(mine) != repr(theirs):  # by their digits: not-a-number equals itself here
            raise HoldersDiffer(
                f"{other} and {worker} differ in the {field} of step {report.step}: "
                f"{theirs!r} and {mine!r}"
            )
