"""The job as people read it: from the coordinator's entries and events to journal.jsonl and
metrics.jsonl.

Written by the coordinator process while it runs; the launcher writes what comes before and after. A
process that takes over goes on where the files end.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.control.job_events import JobEvent
from holdfast.control.journal_entries import Fenced, JournalEntry, Ordered, Started
from holdfast.control.order import Order
from holdfast.control.report import Member
from holdfast.control.step_aggregator import Recorded
from holdfast.observe.events import (
    Event,
    FaultInjected,
    PlanChanged,
    PlanStarted,
    Recovered,
    Restored,
    StepDone,
    WorkerLost,
    WorkerRestarted,
    failure_kind,
)
from holdfast.observe.journal import Journal, read_journal, read_metrics
from holdfast.observe.run_directory import JOURNAL, METRICS, RunDirectory, plan_name
from holdfast.observe.timeline_view import describe_shape
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, format_profile
from holdfast.plan.text import format_plan
from holdfast.runtime.record.job_lines import JobLines
from holdfast.runtime.record.profile_merge import merge_profiles
from holdfast.runtime.wire.messages import Finished, FromWorker, Measured, Struck

KEPT_EVENTS = 100
_BEGUN = PlanStarted | PlanChanged | Recovered | Restored

OnWrite = Callable[[int, int], object]
"""Called with the sizes of journal and metrics after every line."""


class RunLog:
    def __init__(
        self, run_dir: Path, backend: str, seconds: Callable[[], float], first_step: int = 0
    ) -> None:
        """`seconds`: since the run began."""
        self._directory = RunDirectory(run_dir)
        self._journal = Journal(run_dir / JOURNAL, run_dir / METRICS)
        self._backend, self._seconds = backend, seconds
        steps, told = read_metrics(run_dir / METRICS), read_journal(run_dir / JOURNAL)
        self.recorded = Recorded(
            next_step=steps[-1].step + 1 if steps else first_step,
            step_epoch=steps[-1].epoch if steps else 0,
            epoch=max((e.epoch for e in told if isinstance(e, _BEGUN)), default=-1),
        )
        """What was there before."""
        self.loss = steps[-1].loss if steps else None
        """Of the last step."""
        self.faults_before = [e.fault for e in told if isinstance(e, FaultInjected)]
        """Kinds of faults on purpose, under coordinators before this one."""
        self._plans: Mapping[int, Plan] = {}
        self._profiles: dict[tuple[int, str], Profile] = {}
        self.finished: dict[str, Finished] = {}
        self.recent: list[Event] = []
        """The last events, for `holdfast status`."""
        self.on_write: OnWrite = lambda journal, metrics: None

    def know(self, plans: Mapping[int, Plan]) -> None:
        """The plan of every epoch, kept up to date by the coordinator."""
        self._plans = plans
        self._lines = JobLines(self._backend, plans)

    def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            self._journal.write(event)
            self.on_write(*self._journal.sizes)
            self.recent = [*self.recent[-KEPT_EVENTS:], event]
            if isinstance(event, StepDone):
                self.loss = event.loss

    # What the coordinator decides and finds out.

    def note(self, entry: JournalEntry) -> None:
        match entry:
            case Ordered(order=order):
                self._ordered(order)
            case Started(member=member) if member.incarnation > 1:
                self.tell([WorkerRestarted(worker=member.name, incarnation=member.incarnation)])
            case Fenced(member=member, reason=reason):
                self.tell([_lost(member, reason)])

    def _ordered(self, order: Order) -> None:
        plan = self._plans[order.number]
        self._directory.write(plan_name(order.number), format_plan(plan))
        if min(self._plans) == order.number:
            self.tell([_started(order.number, order.at_step, plan)])

    def happened(self, event: JobEvent, snapshot_step: int | None = None) -> None:
        """`snapshot_step`: of the newest snapshot in memory."""
        self.tell(self._lines.events(event, self._seconds(), snapshot_step))

    # What workers tell that nothing is decided from.

    def note_worker(self, member: Member, message: FromWorker) -> None:
        match message:
            case Measured(epoch=epoch, profile=profile):
                self._profiles[epoch, member.name] = profile
            case Finished():
                self.finished[member.name] = message
            case Struck(kind=kind, step=step):
                reason = "on purpose: [[faults]], by the worker itself"
                self.tell([FaultInjected(fault=kind, target=member.name, step=step, reason=reason)])

    def profile(self) -> str:
        """What was measured, in the form of profile.json; empty = nothing."""
        found = [
            (epoch, worker, profile)
            for (epoch, worker), profile in self._profiles.items()
            if epoch in self._plans
        ]
        if not found:
            return ""
        return format_profile(merge_profiles(found, self._plans))

    def close(self) -> None:
        self._journal.close()


def _lost(member: Member, reason: str) -> WorkerLost:
    return WorkerLost(
        worker=member.name,
        incarnation=member.incarnation,
        kind=failure_kind(reason),
        reason=reason,
    )


def _started(number: int, step: int, plan: Plan) -> PlanStarted:
    return PlanStarted(
        reason="the job file says so: [parallel]",
        epoch=number,
        step=step,
        shape=describe_shape(plan),
        num_workers=len(plan.workers),
        file=plan_name(number),
    )
