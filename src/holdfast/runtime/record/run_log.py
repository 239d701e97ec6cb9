"""The job as people read it: from the coordinator's entries and events to journal.jsonl and
metrics.jsonl.

Written by the coordinator process while it runs; the launcher writes what comes before and after. A
process that takes over goes on where the files end.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.control.job_events import JobEvent, PlanWeighed, Recorded
from holdfast.control.journal_entries import (
    Fenced,
    JournalEntry,
    Ordered,
    RunBegun,
    Started,
    StopAsked,
)
from holdfast.control.order import Order
from holdfast.control.report import Member
from holdfast.observe.events import (
    CheckpointWritten,
    Decided,
    Evaluated,
    Event,
    FaultInjected,
    JobEnded,
    JobStarted,
    PlanChanged,
    PlanConsidered,
    PlanStarted,
    ProtectionChanged,
    Recovered,
    Restored,
    StepDone,
    StopRequested,
    WorkerRestarted,
)
from holdfast.observe.journal import Journal, read_journal, read_metrics
from holdfast.observe.plan_decisions import question_name, question_text
from holdfast.observe.run_clock import RunClock
from holdfast.observe.run_directory import JOURNAL, METRICS, RunDirectory, plan_name
from holdfast.observe.timeline_view import describe_shape
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, format_profile
from holdfast.plan.text import format_plan
from holdfast.runtime.launch.launcher_messages import Ending
from holdfast.runtime.record.job_lines import JobLines, evaluated_event, lost_worker
from holdfast.runtime.record.profile_merge import merge_profiles
from holdfast.runtime.record.run_end import WrittenEnd
from holdfast.runtime.wire.messages import FaultAnnounced, Finished, FromWorker, Measured

KEPT_EVENTS = 100
_BEGUN = PlanStarted | PlanChanged | Recovered | Restored

OnWrite = Callable[[int, int], object]
"""Called with the sizes of journal and metrics after every line."""


class RunLog:
    def __init__(self, run_dir: Path, backend: str, clock: RunClock, first_step: int = 0) -> None:
        self._directory = RunDirectory(run_dir)
        self._journal = Journal(run_dir / JOURNAL, run_dir / METRICS, clock.stamp)
        self._backend, self._clock = backend, clock
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
        changes = [e for e in told if isinstance(e, ProtectionChanged)]
        self._protection = (changes[-1].against, changes[-1].not_against) if changes else None
        self._evaluated = {e.step for e in told if isinstance(e, Evaluated)}
        self._num_decisions = sum(isinstance(e, PlanConsidered) for e in told)
        self._plans: Mapping[int, Plan] = {}
        self._profiles: dict[tuple[int, str], Profile] = {}
        self._unwritten: dict[str, str] = {}
        """Files that the disk did not take, by name."""
        self._is_failing = False
        """The last checkpoint was not written, and that was told."""
        self.finished: dict[str, Finished] = {}
        self.recent: list[Event] = []
        """The last events, for `holdfast status`."""
        self._is_beginning = False
        """A run that goes on starts its workers for the first time."""
        self.on_write: OnWrite = lambda journal, metrics: None

    def know(self, plans: Mapping[int, Plan]) -> None:
        """The plan of every epoch, kept up to date by the coordinator."""
        self._plans = plans
        self._lines = JobLines(self._backend, plans, self._num_decisions)

    def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            if not self._is_news(event):
                continue
            self._journal.write(event)
            self.on_write(*self._journal.sizes)
            self.recent = [*self.recent[-KEPT_EVENTS:], event]
            if isinstance(event, StepDone):
                self.loss = event.loss

    def _is_news(self, event: Event) -> bool:
        """Each thing is told once: what the job is protected against (a coordinator that took over
        finds out what the one before has told), that checkpoints fail, and what a state's loss on
        the validation set is.
        """
        match event:
            case ProtectionChanged(against=against, not_against=not_against):
                before, self._protection = self._protection, (against, not_against)
                return before != self._protection
            case Evaluated(step=step):
                has_told = step in self._evaluated
                self._evaluated.add(step)
                return not has_told
            case CheckpointWritten(error=error):
                has_failed, self._is_failing = self._is_failing, bool(error)
                return not (has_failed and error)
        return True

    # What the coordinator decides and finds out.

    def note(self, entry: JournalEntry) -> None:
        match entry:
            case Ordered(order=order):
                self._is_beginning = False
                self._ordered(order)
            case RunBegun():
                self._is_beginning = True
            case Started(member=member) if member.incarnation > 1 and not self._is_beginning:
                self.tell([WorkerRestarted(worker=member.name, incarnation=member.incarnation)])
            case Fenced(member=member, reason=reason):
                self.tell([lost_worker(member, reason)])
            case StopAsked(reason=signal):
                self.tell([_stop_requested(signal)])

    def _ordered(self, order: Order) -> None:
        plan = self._plans[order.number]
        self._write_file(plan_name(order.number), format_plan(plan))
        if order.kind == "start":
            self.tell([_started(order, plan, goes_on=min(self._plans) < order.number)])

    # The disk.

    def _write_file(self, name: str, text: str) -> None:
        """At once, or once there is room."""
        try:
            self._directory.write(name, text)
            self._unwritten.pop(name, None)
        except OSError:
            self._unwritten[name] = text

    def flush(self) -> None:
        """Write what waits for room on the disk."""
        for name, text in list(self._unwritten.items()):
            self._write_file(name, text)
        if self._journal.num_waiting:
            self._journal.flush()
            self.on_write(*self._journal.sizes)

    @property
    def trouble(self) -> str:
        """Why something waits to be written; empty: nothing does."""
        return self._journal.trouble or ("it takes no files" if self._unwritten else "")

    @property
    def num_waiting(self) -> int:
        return self._journal.num_waiting + len(self._unwritten)

    # What happened.

    def happened(self, event: JobEvent, snapshot_step: int | None = None) -> None:
        """`snapshot_step`: of the newest snapshot in memory."""
        if isinstance(event, PlanWeighed):
            text = question_text(event.question)
            self._write_file(question_name(text), text)
        self.tell(self._lines.events(event, self._clock.seconds, snapshot_step))

    # What workers tell that nothing is decided from.

    def note_worker(self, member: Member, message: FromWorker) -> None:
        match message:
            case Measured(epoch=epoch, profile=profile):
                self._profiles[epoch, member.name] = profile
            case Finished():
                self.finished[member.name] = message
                if (loss := message.eval_loss) is not None:
                    last = (message.next_step, loss, message.eval_tokens, message.eval_s)
                    self.tell([evaluated_event(*last)])
                if message.final_error:
                    self.tell([Decided(reason=message.final_error, details={"of": member.name})])
            case FaultAnnounced():
                self.tell(
                    [
                        FaultInjected(
                            fault=message.kind,
                            target=message.target or member.name,
                            step=message.step,
                            factor=message.factor,
                            duration_s=message.duration_s,
                            steps=message.steps,
                            reason="on purpose: [[faults]], by the worker itself",
                        )
                    ]
                )

    def profile(self, current: Profile = Profile()) -> str:
        """What was measured, in the form of profile.json; empty = nothing. `current`: from the last
        steps, which knows single links, and an agreement without the wait for the last worker.
        """
        found = [
            (epoch, worker, profile)
            for (epoch, worker), profile in self._profiles.items()
            if epoch in self._plans
        ]
        if not found:
            return format_profile(current) if current.unit else ""
        merged = merge_profiles(found, self._plans)
        agree = current.agree or merged.agree
        return format_profile(msgspec.structs.replace(merged, links=current.links, agree=agree))

    def sync(self) -> None:
        """What was written outlives this host."""
        self._journal.sync()

    def end(self, ending: Ending, *, first_step: int, keep_final: bool) -> None:
        """Of a run whose launcher may be gone. Once: the coordinator before may have done it."""
        told = read_journal(self._directory / JOURNAL)
        begun = [n for n, event in enumerate(told) if isinstance(event, JobStarted)]
        started = told[begun[-1]]
        assert isinstance(started, JobStarted)
        if not any(isinstance(event, JobEnded) for event in told[begun[-1] :]):
            WrittenEnd(
                self._directory,
                started,
                self._clock,
                ending,
                first_step=first_step,
                keep_final=keep_final,
                write=self._journal.write,
            )

    def close(self) -> None:
        self._journal.close()


def _stop_requested(signal: str) -> StopRequested:
    reason = "stopping with a checkpoint at the next step boundary"
    if signal == "SIGINT":
        reason += "; Ctrl-C again to stop at once"
    return StopRequested(signal=signal, reason=reason)


def _started(order: Order, plan: Plan, *, goes_on: bool) -> PlanStarted:
    """`goes_on`: there were orders before, and the reason says why nothing of them is used."""
    return PlanStarted(
        reason=order.reason if goes_on else "the job file says so: [parallel]",
        epoch=order.number,
        step=order.at_step,
        shape=describe_shape(plan),
        num_workers=len(plan.workers),
        file=plan_name(order.number),
    )
