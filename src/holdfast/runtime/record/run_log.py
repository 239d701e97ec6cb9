"""The job as people read it: from orders and workers' words to journal.jsonl and metrics.jsonl.

Written by the coordinator while it runs; the launcher writes what comes before and after. A
coordinator that takes over goes on where the files end.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.control.journal_entries import Dropped, Fenced, JournalEntry, Ordered, Started
from holdfast.control.journal_state import JournalState
from holdfast.control.report import Member
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
    WorkersReady,
    failure_kind,
)
from holdfast.observe.journal import Journal, read_journal, read_metrics
from holdfast.observe.run_directory import JOURNAL, METRICS, RunDirectory, plan_name
from holdfast.observe.timeline_view import describe_shape
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, format_profile
from holdfast.plan.text import format_plan
from holdfast.runtime.record.profile_merge import merge_profiles
from holdfast.runtime.record.step_aggregator import KnownEpoch, StepAggregator
from holdfast.runtime.wire.messages import (
    ChangeMessage,
    Finished,
    FromWorker,
    Measured,
    RecoveryMessage,
    RestoreMessage,
    StepMessage,
    Struck,
)

KEPT_EVENTS = 100
_BEGUN = PlanStarted | PlanChanged | Recovered | Restored

OnWrite = Callable[[int, int], object]
"""Called with the sizes of journal and metrics after every line."""


class RunLog:
    def __init__(
        self,
        run_dir: Path,
        wanted: Plan,
        backend: str,
        seconds: Callable[[], float],
        first_step: int = 0,
    ) -> None:
        self._directory = RunDirectory(run_dir)
        self._journal = Journal(run_dir / JOURNAL, run_dir / METRICS)
        steps = read_metrics(run_dir / METRICS)
        self.ledger = StepAggregator(backend, steps[-1].step + 1 if steps else first_step)
        self.loss = steps[-1].loss if steps else None
        """Of the last step."""
        self.past = JournalState(wanted)
        self._seconds = seconds
        self._profiles: dict[tuple[int, str], Profile] = {}
        self.finished: dict[str, Finished] = {}
        self.faults_before: list[str] = []
        """Kinds of faults on purpose, under coordinators before this one."""
        self.recent: list[Event] = []
        """The last events, for `holdfast status`."""
        self.on_write: OnWrite = lambda journal, metrics: None

    def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            self._journal.write(event)
            self.on_write(*self._journal.sizes)
            self.recent = [*self.recent[-KEPT_EVENTS:], event]
            if isinstance(event, StepDone):
                self.loss = event.loss

    def steps_since(self, step: int) -> list[StepDone]:
        """Those done from this one on, as far as they are recent."""
        return [e for e in self.recent if isinstance(e, StepDone) and e.step >= step]

    # The coordinator's entries.

    def replay(self, entries: Sequence[JournalEntry]) -> None:
        """What a coordinator before this one has written down."""
        for entry in entries:
            self.note(entry, is_new=False)
        told = read_journal(self._directory / JOURNAL)
        self.faults_before = [e.fault for e in told if isinstance(e, FaultInjected)]
        begun = [e.epoch for e in told if isinstance(e, _BEGUN)]
        self.ledger.begun(max(begun, default=self.ledger.epoch))

    def note(self, entry: JournalEntry, *, is_new: bool = True) -> None:
        before = self.past.last
        self.past.note(entry)
        match entry:
            case Ordered(order=order, step=step):
                if order.kind == "restore" and is_new:
                    self.ledger.rewind(step, order.number)
                plan = self.past.plans[order.number]
                if is_new:
                    self._directory.write(plan_name(order.number), format_plan(plan))
                known = KnownEpoch(
                    number=order.number,
                    kind=order.kind,
                    plan=plan,
                    reason=order.reason,
                    before=before.number if before is not None else None,
                )
                if is_new and before is None:
                    self.tell([_started(order.number, order.at_step, plan)])
                events = self.ledger.begin(known)
                self.tell(events)
            case Dropped(number=number):
                self.ledger.drop(number)
            case Started(member=member) if is_new and member.incarnation > 1:
                self.tell([WorkerRestarted(worker=member.name, incarnation=member.incarnation)])
            case Fenced(member=member, reason=reason):
                if is_new:
                    self.tell([_lost(member, reason)])
                self.tell(self.ledger.lose(member.name))

    def ready(self, pids: dict[str, int]) -> None:
        self.tell([WorkersReady(seconds=self._seconds(), pids=pids)])

    # Workers' words.

    def hear(self, member: Member, message: FromWorker) -> None:
        match message:
            case StepMessage(report=step):
                self.tell(self.ledger.add_step(member.name, step))
            case ChangeMessage(report=change):
                self.tell(self.ledger.add_change(member.name, change))
            case RecoveryMessage(report=recovery):
                self.tell(self.ledger.add_change(member.name, recovery))
            case RestoreMessage(report=restore):
                self.tell(self.ledger.add_change(member.name, restore))
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
            if epoch in self.past.plans
        ]
        if not found:
            return ""
        return format_profile(merge_profiles(found, self.past.plans))

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
