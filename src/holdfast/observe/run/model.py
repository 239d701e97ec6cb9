"""The run model: from the events of a run, one by one, to everything that is shown of it.

Pure: events come with their time, and nothing is read or written. The same model stands behind the
report, the terminal, the page and the metrics, so they cannot disagree.

Steps drive the clock. What happens between the ends of two steps is collected in `_Between`, and
with the second one becomes an interval of the time account (observe/run/intervals.py). An incident
is open from the moment a worker is found lost until the next step ends under a plan without it.
"""

from collections.abc import Collection

import msgspec

from holdfast.observe.events import (
    CheckpointWritten,
    CoordinatorStarted,
    Decided,
    Evaluated,
    Event,
    FaultInjected,
    HostJoined,
    JobEnded,
    JobStarted,
    PlanChanged,
    PlanConsidered,
    PlanStarted,
    ProtectionChanged,
    ProtectionLacking,
    ProtectionProvided,
    Recovered,
    Restored,
    SlownessJudged,
    StepDone,
    StepSkipped,
    StopRequested,
    WorkerFailed,
    WorkerLost,
    WorkerRestarted,
    WorkersReady,
)
from holdfast.observe.goodput import Budget
from holdfast.observe.progress import describe_evaluation
from holdfast.observe.quantities import count, describe_protection
from holdfast.observe.run.incidents import (
    COORDINATOR,
    JOINER,
    NODE_WIDE,
    RECOVERY,
    RESTORE,
    RUN,
    Incident,
    LostWorker,
)
from holdfast.observe.run.intervals import StepInterval
from holdfast.observe.run.series import StepSeries
from holdfast.observe.run.time_account import TimeAccount
from holdfast.observe.run.workers import Workers

MAX_NOTES = 10_000
HARMLESS = ("SLOW", "SLOW_LINK", "SIGCONT")
"""Faults that no worker is lost by."""
KEPT_TIMES = 1000
"""A snapshot is not older than so many steps."""


class RunNote(msgspec.Struct, frozen=True):
    """One thing worth a line or a mark: fault, lost, decision, recovery, plan, checkpoint, end."""

    at_s: float
    step: int
    kind: str
    text: str


class _Between(msgspec.Struct, kw_only=True):
    """What happened since the last step ended."""

    start_s: float
    is_first: bool = False
    seen_s: float | None = None
    decided_s: float | None = None
    is_over: bool = False
    is_restored: bool = False
    load_s: float = 0.0
    micro_batches: int = 0
    stall_s: float = 0.0
    has_joined: bool = False
    coordinator_lost: bool = False


class RunModel:
    def __init__(self) -> None:
        self.started: JobStarted | None = None
        self.ended: JobEnded | None = None
        self.started_s = 0.0
        self.now_s = 0.0
        """The time of the last event."""
        self.is_ready = False
        self.next_step = 0
        self.steps_done = 0
        """Kept: those that were undone are not among them."""
        self.steps_redone = 0
        self.tokens = 0
        self.shape, self.plan_file, self.epoch = "", "", 0
        self.workers = Workers()
        self.series = StepSeries()
        self.incidents: list[Incident] = []
        self.changes: list[PlanChanged] = []
        self.recoveries: list[Recovered] = []
        self.restores: list[Restored] = []
        self.checkpoints: list[tuple[float, CheckpointWritten]] = []
        self.num_checkpoints_failed = 0
        self.snapshot_step: int | None = None
        """Steps done in the newest snapshot that is whole in memory."""
        self.copied_bytes, self.copied_in_bubbles, self.copy_wait_s = 0, 0, 0.0
        """For snapshots, in steps that were done again, too."""
        self._ended_s: dict[int, float] = {}
        """When so many steps were done, of the newest."""
        self.num_skipped = 0
        self.protections: list[ProtectionChanged] = []
        """What the job was protected against, from then on."""
        self.provided = ""
        """What is kept of the state, where and how often."""
        self.evaluations: list[Evaluated] = []
        self.considered: list[PlanConsidered] = []
        self.judged: list[SlownessJudged] = []
        self.lacking: list[str] = []
        """Protection that was asked for and could not be had."""
        self.notes: list[RunNote] = []
        self.term = 1
        self.num_changed = 0
        """Counts up with every event."""
        self._account = TimeAccount()
        self._between = _Between(start_s=0.0)
        self._open: Incident | None = None
        self._not_whole: list[Incident] = []
        self._faults: list[str] = []

    # Events.

    def add(self, at_s: float, event: Event) -> None:
        """Take in one event; times never go back."""
        self.now_s = max(self.now_s, at_s)
        self.num_changed += 1
        match event:
            case StepDone():
                self._step(event)
            case JobStarted():
                self._start(event)
            case WorkersReady():
                self.workers.ready(event.pids, self.now_s)
                self._account.lose("starting", self.now_s - self._between.start_s)
                self.is_ready = True
                self._between = _Between(start_s=self.now_s, is_first=True)
                self._note("plan", f"ready: {count(len(event.pids), 'worker')}")
            case PlanStarted():
                self._plan(event.shape, event.file, event.epoch)
                if event.step < self.next_step:
                    self._undo(event.step)
                self.next_step = event.step
            case JobEnded():
                self._end(event)
            case _:
                self._happened(event)

    def _happened(self, event: Event) -> None:
        match event:
            case WorkerLost():
                self._lost(event)
            case WorkerRestarted():
                self.workers.restarted(event.worker, event.incarnation, self.now_s)
            case Recovered():
                self._recovered(event)
            case Restored():
                self._restored(event)
            case PlanChanged():
                self._changed(event)
            case CoordinatorStarted():
                self._coordinator(event)
            case Decided():
                self._decided(event)
            case _:
                self._rest(event)

    def _rest(self, event: Event) -> None:
        match event:
            case PlanConsidered():
                self._considered(event)
            case SlownessJudged():
                self._judged(event)
            case FaultInjected():
                if event.fault not in HARMLESS:
                    self._faults.append(f"{event.fault} {event.target}")
                self._note("fault", f"fault on purpose: {event.fault} at {event.target}")
            case CheckpointWritten():
                self._checkpoint(event)
            case ProtectionChanged():
                self.protections.append(event)
                self._note("plan", describe_protection(event.against, event.not_against))
            case ProtectionProvided(reason=reason):
                self.provided = reason
            case ProtectionLacking(reason=reason):
                self.lacking.append(reason)
                self._note("fault", reason)
            case Evaluated():
                self.evaluations.append(event)
                self._note("plan", describe_evaluation(event))
            case HostJoined(reason=reason):
                self._note("plan", reason)
            case StepSkipped():
                self.num_skipped += 1
                self._note("fault", f"step {event.step} was not applied: {event.reason}")
            case StopRequested():
                self._note("end", f"{event.signal}: {event.reason}")
            case WorkerFailed():
                self._note("lost", f"{event.worker} {event.reason}")

    def _note(self, kind: str, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(RunNote(self.now_s, self.next_step, kind, text))

    def _start(self, event: JobStarted) -> None:
        if self.started is None:
            self.started_s = self.now_s
        else:  # the same directory goes on
            self._account.lose("not running", self.now_s - self._between.start_s)
            if self.ended is None:
                self._open = self._incident(RUN)
                self._open.at_s = self._between.start_s
        self.started, self.ended, self.is_ready = event, None, False
        self._between = _Between(start_s=self.now_s)
        self._note("plan", f"{event.name} was started")

    def _plan(self, shape: str, file: str, epoch: int) -> None:
        self.shape, self.plan_file, self.epoch = shape, file, epoch

    def _step(self, step: StepDone) -> None:
        if step.step < self.next_step:
            self._undo(step.step)
        between = self._between
        interval = self._interval(step.eval_s)
        self._account.add(step.step, interval)
        self.series.add(self.now_s - self.started_s, step)
        self.next_step = step.step + 1
        self.steps_done += 1
        self.tokens += step.tokens
        self._note_snapshot(step.snapshot_step)
        self.copied_bytes += step.copied_bytes
        self.copied_in_bubbles += step.copied_in_bubbles
        self.copy_wait_s += step.copy_wait_s
        if self._open is not None:
            self._delay(self._open, interval)
            if interval.is_over:
                self._close(self._open)
        self._between = _Between(start_s=self.now_s)
        if not interval.is_over:
            self._between.seen_s, self._between.decided_s = between.seen_s, between.decided_s

    def _note_snapshot(self, snapshot_step: int | None) -> None:
        self.snapshot_step = snapshot_step
        self._ended_s[self.next_step] = self.now_s
        if len(self._ended_s) > 2 * KEPT_TIMES:
            self._ended_s = dict(list(self._ended_s.items())[-KEPT_TIMES:])

    def _undo(self, step: int) -> None:
        """Steps from this one on are lost, and done again."""
        self.steps_done -= self.next_step - step
        self.steps_redone += self.next_step - step
        self.next_step = step
        self._account.undo(step)

    def _interval(self, eval_s: float) -> StepInterval:
        between = self._between
        total = self.started.micro_batches if self.started is not None else 0
        return StepInterval(
            start_s=between.start_s,
            end_s=self.now_s,
            is_first=between.is_first,
            is_short=self.workers.is_short,
            seen_s=between.seen_s,
            decided_s=between.decided_s,
            is_over=between.is_over or between.seen_s is None,
            is_restored=between.is_restored,
            load_s=between.load_s,
            share_again=between.micro_batches / total if total else 0.0,
            stall_s=between.stall_s,
            has_joined=between.has_joined,
            coordinator_lost=between.coordinator_lost,
            eval_s=eval_s,
        )

    # Incidents.

    def _incident(self, kind: str = "") -> Incident:
        incident = Incident(
            number=len(self.incidents) + 1,
            at_s=self.now_s,
            step=self.next_step,
            faults=self._faults,
            shape_before=self.shape,
            file_before=self.plan_file,
        )
        if kind:
            incident.kind = kind
        self._faults = []
        self.incidents.append(incident)
        return incident

    def _lost(self, event: WorkerLost) -> None:
        had_role = self.workers.lost(
            event.worker, event.incarnation, event.kind, event.reason, self.now_s
        )
        self._note("lost", f"{event.worker} lost ({event.kind}): {event.reason}")
        lost = LostWorker(event.worker, event.kind, event.reason)
        if had_role or self._open is not None:
            self._must_recover()
            incident = self._open = self._open or self._incident()
            incident.lost = [*incident.lost, lost]
            incident.missing = sorted({*incident.missing, event.worker})
        elif self._is_of_last(lost):
            self.incidents[-1].lost = [*self.incidents[-1].lost, lost]
        else:
            incident = self._incident(JOINER)
            incident.lost, incident.over_s, incident.whole_s = [lost], self.now_s, self.now_s

    def _is_of_last(self, lost: LostWorker) -> bool:
        """Is it one more worker of the node that the last incident is about?"""
        before = self.incidents[-1].lost if self.incidents else []
        return lost.kind in NODE_WIDE and any(other.reason == lost.reason for other in before[-1:])

    def _must_recover(self) -> None:
        if self._between.seen_s is None:
            self._between.seen_s = self.now_s

    def _decided(self, event: Decided) -> None:
        self._note("decision", event.reason)
        if "round" in event.details:
            self._must_recover()
            self._between.decided_s = None
            self._open = self._open or self._incident()
        if self._open is not None:
            self._open.decisions = [*self._open.decisions, event.reason]
            if "order" in event.details and self._between.decided_s is None:
                self._between.decided_s = self.now_s

    def _considered(self, event: PlanConsidered) -> None:
        """It is of the last incident in which workers were lost."""
        self.considered.append(event)
        entered = "entered" if event.entered else "not entered"
        self._note("decision", f"the planner's {event.strategy} is {entered}: {event.reason}")
        last = next((found for found in reversed(self.incidents) if found.lost), None)
        if last is not None:
            words = f"asked, because {event.asked}: {event.strategy} ({entered}): {event.reason}"
            last.decisions = [*last.decisions, words]
            last.runner_ups = list(event.runner_ups)

    def _judged(self, event: SlownessJudged) -> None:
        self.judged.append(event)
        self.workers.judged(event.who, event.verdict, event.factor, event.reason, self.now_s)
        self._note("slow", f"{', '.join(event.who)} {event.verdict}: {event.reason}")

    def _recovered(self, event: Recovered) -> None:
        incident = self._conclude(RECOVERY, event.shape, event.file)
        incident.micro_batches = event.micro_batches
        incident.missing = sorted({*incident.missing, *event.lost})
        self._between.micro_batches = event.micro_batches
        self.workers.gone(event.lost, self.now_s)
        self._plan(event.shape, event.file, event.epoch)
        self.recoveries.append(event)
        self._note("recovery", f"recovered: {event.shape}")

    def _restored(self, event: Restored) -> None:
        self._between.is_restored, self._between.load_s = True, event.load_s
        if event.step < self.next_step:
            self._undo(event.step)
        if self._open is not None or not event.goes_on:
            kind = RUN if event.goes_on else RESTORE
            incident = self._conclude(kind, event.shape, event.file)
            incident.steps_redone, incident.sources = event.steps_redone, list(event.sources)
            self._back(event.workers or incident.missing)
            incident.missing = [name for name in incident.missing if name in self.workers.missing()]
            incident.whole_s = None if incident.missing else self.now_s
        self._plan(event.shape, event.file, event.epoch)
        self.restores.append(event)
        self._note("recovery", f"restored to step {event.step}: {event.shape}")

    def _conclude(self, kind: str, shape: str, file: str) -> Incident:
        """The open incident is over with the next step."""
        self._must_recover()
        self._between.is_over = True
        incident = self._open = self._open or self._incident()
        incident.kind, incident.shape, incident.file = kind, shape, file
        return incident

    def _delay(self, incident: Incident, interval: StepInterval) -> None:
        """A step has ended while it is open: it may be late, too. Workers that were about to end
        it when others were lost report it only after the recovery.
        """
        incident.late_s += interval.seconds - self._account.usual_s
        for cause, seconds in self._account.costs(interval).items():
            incident.costs_s[cause] = incident.costs_s.get(cause, 0.0) + seconds

    def _close(self, incident: Incident) -> None:
        incident.over_s, incident.over_step = self.now_s, self.next_step - 1
        late_s = incident.late_s
        if incident.kind == RUN:
            late_s = self.now_s - incident.at_s - self._account.usual_s
        incident.stall_s = max(0.0, late_s)
        if not incident.missing and incident.whole_s is None:
            incident.whole_s = self.now_s
        if incident.missing:
            self._not_whole.append(incident)
        self._open = None

    def _changed(self, event: PlanChanged) -> None:
        self._between.stall_s += event.stall_s
        self._between.has_joined = bool(event.joining)
        returning = [name for name in event.joining if name in self.workers.known]
        self._back(event.joining)
        self.workers.left(event.leaving, self.now_s)
        if not returning:
            self._account.changed_plan()
        self._plan(event.shape, event.file, event.epoch)
        self.changes.append(event)
        who = f"{', '.join(event.joining)} joined: " if event.joining else ""
        self._note("plan", f"{who}{event.shape}")

    def _back(self, names: Collection[str]) -> None:
        """They take part in steps."""
        self.workers.joined(names, self.now_s)
        for incident in self._not_whole:
            incident.missing = [name for name in incident.missing if name not in names]
            if not incident.missing:
                incident.whole_s = self.now_s
        self._not_whole = [incident for incident in self._not_whole if incident.missing]

    def _coordinator(self, event: CoordinatorStarted) -> None:
        self.term = event.term
        self._between.coordinator_lost = True
        incident = self._incident(COORDINATOR)
        incident.over_s = incident.whole_s = self.now_s
        incident.decisions = [event.reason]
        self._note("lost", "the coordinator was lost; another one goes on from its journal")

    def _checkpoint(self, event: CheckpointWritten) -> None:
        if event.error:
            self.num_checkpoints_failed += 1
            self._note("fault", f"checkpoint of step {event.step} was not written: {event.error}")
        else:
            self.checkpoints.append((self.now_s, event))
            self._note("checkpoint", f"checkpoint of step {event.step}")

    def _end(self, event: JobEnded) -> None:
        self.ended = event
        self._account.lose("ending", self.now_s - self._between.start_s)
        self._between = _Between(start_s=self.now_s)
        self._note("end", f"{event.outcome}: {event.reason}")

    # What follows.

    @property
    def wall_s(self) -> float:
        """From the first process to the last event."""
        return self.now_s - self.started_s

    @property
    def is_recovering(self) -> bool:
        """A worker was found lost, and the step in flight is not completed."""
        return self._between.seen_s is not None

    def snapshot_age_s(self, now_s: float) -> float | None:
        """Since the state of the newest snapshot in memory; None: there is none."""
        if self.snapshot_step is None:
            return None
        return max(0.0, now_s - self._ended_s.get(self.snapshot_step, self.started_s))

    @property
    def usual_step_s(self) -> float:
        return self._account.usual_s

    def goodput(self, now_s: float | None = None) -> Budget:
        """Where the time went until now: the parts add up to the wall time."""
        now = self.now_s if now_s is None or self.ended is not None else max(now_s, self.now_s)
        if self.ended is not None:
            return self._account.budget()
        tail_s = now - self._between.start_s
        if not self.is_ready:
            return self._account.budget(tail_s, "starting")
        return self._account.budget(tail_s, "detection" if self.is_recovering else "")

    def longest_stall_s(self) -> float:
        """Over recoveries, restores and planned changes."""
        stalls = [incident.stall_s for incident in self.incidents]
        return max([*stalls, *(change.stall_s for change in self.changes)], default=0.0)

    def downtime_s(self) -> float:
        """Time without training: stalls of incidents and changes, and while it was not running."""
        lost = self.goodput().lost_ms
        causes = ("detection", "planning", "groups", "loading", "joining", "moving state")
        return sum(lost.get(cause, 0.0) for cause in (*causes, "not running")) / 1000
