"""What all workers say, put together: one event per step and per change of epoch.

Pure bookkeeping. An epoch is known from its order. A step counts when everybody has reported it who
has a seat in the epoch that agreed on it and is not lost since; an epoch has begun when all of them
have entered it. All reports of a step must agree: the loss is one number given to everybody, and,
where the run verifies itself, so is every checksum of what several workers hold.

Reports may come again (from agents that do not know what a coordinator before this one has written
down) and are left out then.
"""

from collections.abc import Iterable
from math import isfinite

import msgspec

from holdfast.engine.group_keys import needed_groups
from holdfast.engine.reports import ChangeReport, RecoveryReport, RestoreReport, StepReport
from holdfast.observe.events import Event, PlanChanged, Recovered, Restored, StepDone, StepSkipped
from holdfast.observe.run_directory import plan_name
from holdfast.observe.timeline_view import describe_shape
from holdfast.plan.plan import Plan

MAX_REASONS = 20

EpochReport = ChangeReport | RecoveryReport | RestoreReport


class HoldersDiffer(Exception):
    """Two workers disagree on something that must be the same on both."""


class KnownEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger has to know of an order."""

    number: int
    kind: str
    """As in control/order.py."""
    plan: Plan
    reason: str
    before: int | None = None
    """The epoch it follows; None: it is the first."""


class StepAggregator:
    def __init__(self, backend: str, next_step: int = 0) -> None:
        self._backend = backend
        self.next_step = next_step
        """The first that is not complete."""
        self.epoch = -1
        """The last that everybody has entered."""
        self._epochs: dict[int, KnownEpoch] = {}
        self._lost: dict[str, int] = {}
        """Worker -> the last epoch that does not wait for it."""
        self._steps: dict[int, dict[str, StepReport]] = {}
        self._changes: dict[int, dict[str, EpochReport]] = {}
        self._rewound: dict[int, tuple[int, int]] = {}
        """By the epoch that begins with it: the first step that is done again, and how many."""
        self._sums: dict[tuple[int, str], tuple[str, int]] = {}

    # What is known beforehand.

    def begin(self, epoch: KnownEpoch) -> list[Event]:
        """An order was given. The first needs nobody's word to have begun."""
        self._lose_unseated(epoch)
        self._epochs[epoch.number] = epoch
        if epoch.before is None:
            self.epoch = epoch.number
        return self._settle()

    def _lose_unseated(self, epoch: KnownEpoch) -> None:
        """Who lives, but has no seat after a recovery, as others of its replica were lost, may have
        missed the end of a step; nobody has it follow the others.
        """
        before = self._epochs.get(epoch.before) if epoch.before is not None else None
        if epoch.kind == "recover" and before is not None:
            for name in before.plan.workers:
                if name not in epoch.plan.seats:
                    self._lost[name] = max(self._epochs)

    def begun(self, number: int) -> None:
        """Everybody was seen in this epoch, by a ledger before this one."""
        self.epoch = number
        self._changes = {n: told for n, told in self._changes.items() if n > number}

    def drop(self, number: int) -> None:
        """An order that nobody will enter."""
        self._epochs.pop(number, None)
        self._changes.pop(number, None)

    def lose(self, worker: str) -> list[Event]:
        """It will not report any more, unless it joins in an epoch to come."""
        self._lost[worker] = max(self._epochs, default=-1)
        return self._settle()

    def rewind(self, step: int, epoch: int) -> None:
        """State is restored: steps from here on are done again, from this epoch on."""
        self._rewound[epoch] = (step, max(0, self.next_step - step))
        self.next_step = min(self.next_step, step)
        self._steps = {s: reports for s, reports in self._steps.items() if s < step}
        self._sums = {key: value for key, value in self._sums.items() if key[0] < step}

    # What is told.

    def add_step(self, worker: str, report: StepReport) -> list[Event]:
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
            report.epoch < epoch and report.step >= step
            for epoch, (step, _) in self._rewound.items()
        )

    def add_change(self, worker: str, report: EpochReport) -> list[Event]:
        if report.epoch > self.epoch:
            self._changes.setdefault(report.epoch, {})[worker] = report
        return self._settle()

    def _settle(self) -> list[Event]:
        """Complete changes and steps, in their order."""
        events: list[Event] = []
        while (found := self._next_change() or self._next_steps()) is not None:
            events += found
        return events

    def _waited_for(self, number: int, workers: Iterable[str]) -> set[str]:
        return {worker for worker in workers if self._lost.get(worker, -1) < number}

    def _next_change(self) -> list[Event] | None:
        for number in sorted(self._changes):
            epoch = self._epochs.get(number)
            if epoch is None or epoch.before is None:
                continue
            before = self._epochs.get(epoch.before)
            if before is None:
                continue
            concerned = set(epoch.plan.workers)
            if epoch.kind == "change":
                concerned.update(before.plan.workers)
            reports = self._changes[number]
            if self._waited_for(number, concerned) <= reports.keys():
                event = self._changed(epoch, before, reports)
                self.epoch = number
                # Earlier ones that came to nothing are not waited for any more.
                self._changes = {n: r for n, r in self._changes.items() if n > number}
                return [event]
        return None

    def _changed(
        self, epoch: KnownEpoch, before: KnownEpoch, reports: dict[str, EpochReport]
    ) -> Event:
        old, new = before.plan.workers, epoch.plan.workers
        restores = [report for report in reports.values() if isinstance(report, RestoreReport)]
        if restores:
            return _restored(epoch, restores, self._rewound.get(epoch.number, (0, 0))[1])
        changes = {w: report for w, report in reports.items() if isinstance(report, ChangeReport)}
        if not changes:
            had_a_seat = self._seated_since_begun(before)
            lost = tuple(name for name in had_a_seat if name not in new)
            return _recovered(epoch, lost, list(reports.values()))
        # Who joins has waited, too, but kept nobody from training.
        stalls = [report.stall_s for worker, report in changes.items() if worker in old]
        kept, made = count_groups(before.plan, epoch.plan, self._backend)
        return PlanChanged(
            reason=epoch.reason,
            epoch=epoch.number,
            step=next(iter(changes.values())).step,
            shape=describe_shape(epoch.plan),
            num_workers=len(new),
            joining=tuple(name for name in new if name not in before.plan.seats),
            leaving=tuple(name for name in old if name not in epoch.plan.seats),
            stall_s=max(stalls, default=0.0),
            bytes_moved=sum(report.bytes_received for report in changes.values()),
            groups_kept=kept,
            groups_made=made,
            file=plan_name(epoch.number),
        )

    def _seated_since_begun(self, epoch: KnownEpoch) -> list[str]:
        """Who had a seat in this epoch, or in one before it that came to nothing because more was
        lost on the way: back to the last that everybody has entered.
        """
        names = dict.fromkeys(epoch.plan.workers)
        while epoch.number > self.epoch and epoch.before in self._epochs:
            epoch = self._epochs[epoch.before]
            names |= dict.fromkeys(epoch.plan.workers)
        return sorted(names)

    def _next_steps(self) -> list[Event] | None:
        reports = self._steps.get(self.next_step, {})
        if not reports:
            return None
        number = next(iter(reports.values())).epoch
        epoch = self._epochs.get(number)
        if epoch is None or number > self.epoch:
            return None
        if not self._waited_for(number, epoch.plan.workers) <= reports.keys():
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
                unit = self._epochs[report.epoch].plan.units[int(key.partition("/")[0])]
                raise HoldersDiffer(
                    f"{other} and {worker} differ in {unit.name} after step {report.step}: "
                    f"checksums {expected:x} and {value:x} of what both hold"
                )


def _restored(epoch: KnownEpoch, reports: list[RestoreReport], steps_redone: int) -> Event:
    origins: dict[str, int] = {}
    for report in reports:
        for origin, size in report.bytes_by_origin.items():
            origins[origin] = origins.get(origin, 0) + size
    reasons = dict.fromkeys(reason for report in reports for reason in report.reasons)
    return Restored(
        reason=epoch.reason,
        epoch=epoch.number,
        step=reports[0].step,
        shape=describe_shape(epoch.plan),
        num_workers=len(epoch.plan.workers),
        steps_redone=steps_redone,
        stall_s=max(report.stall_s for report in reports),
        load_s=max(report.load_s for report in reports),
        bytes_by_origin=origins,
        sources=tuple(reasons)[:MAX_REASONS],
        file=plan_name(epoch.number),
    )


def _recovered(epoch: KnownEpoch, lost: tuple[str, ...], reports: list[EpochReport]) -> Event:
    found = [report for report in reports if isinstance(report, RecoveryReport)]
    return Recovered(
        reason=epoch.reason,
        epoch=epoch.number,
        step=found[0].step,
        shape=describe_shape(epoch.plan),
        num_workers=len(epoch.plan.workers),
        lost=lost,
        stall_s=max(report.stall_s for report in found),
        micro_batches=max(report.num_micro_batches for report in found),
        num_followed=sum(report.followed for report in found),
        file=plan_name(epoch.number),
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
