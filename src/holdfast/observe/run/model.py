"""The run model: from the events of a run, one by one, to everything that is shown of it.

Pure: events come with their time, and nothing is read or written. The same model stands behind the
report, the terminal, the page and the metrics, so they cannot disagree.

What an event changes is decided here; when time counts as lost in `step_clock`, when an incident
begins and ends in `incident_log`.
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
    IdleNodeLost,
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
from holdfast.observe.run.incident_log import IncidentLog, RunMoment
from holdfast.observe.run.incidents import NODE_WIDE, RECOVERY, RESTORE, RUN, Incident, LostWorker
from holdfast.observe.run.series import StepSeries
from holdfast.observe.run.step_clock import StepClock
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
        self._clock = StepClock()
        self._log = IncidentLog()

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
                self._clock.lose("starting", self.now_s)
                self.is_ready = True
                self._clock.begin(self.now_s, is_first=True)
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
                    self._log.note_fault(f"{event.fault} {event.target}")
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
            case IdleNodeLost(node=node, reason=reason):
                self._note("lost", f"{node} lost: {reason}")
                self._log.lost_idle_node(self._moment, LostWorker(node, NODE_WIDE[0], reason))

    def _note(self, kind: str, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(RunNote(self.now_s, self.next_step, kind, text))

    def _start(self, event: JobStarted) -> None:
        if self.started is None:
            self.started_s = self.now_s
        else:  # the same directory goes on
            self._clock.lose("not running", self.now_s)
            if self.ended is None:
                self._log.killed(self._moment, self._clock.since_s)
        self.started, self.ended, self.is_ready = event, None, False
        self._clock.begin(self.now_s)
        self._note("plan", f"{event.name} was started")

    def _plan(self, shape: str, file: str, epoch: int) -> None:
        self.shape, self.plan_file, self.epoch = shape, file, epoch

    def _step(self, step: StepDone) -> None:
        if step.step < self.next_step:
            self._undo(step.step)
        interval = self._clock.end_step(
            step.step,
            self.now_s,
            is_short=self.workers.is_short,
            eval_s=step.eval_s,
            micro_batches=self.started.micro_batches if self.started is not None else 0,
        )
        self.series.add(self.now_s - self.started_s, step)
        self.next_step = step.step + 1
        self.steps_done += 1
        self.tokens += step.tokens
        self._note_snapshot(step.snapshot_step)
        self.copied_bytes += step.copied_bytes
        self.copied_in_bubbles += step.copied_in_bubbles
        self.copy_wait_s += step.copy_wait_s
        if self._log.is_open:
            costs = self._clock.costs(interval)
            self._log.step_ended(step.step, interval, costs, self._clock.usual_s)

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
        self._clock.undo(step)

    # Incidents.

    @property
    def incidents(self) -> list[Incident]:
        return self._log.incidents

    @property
    def _moment(self) -> RunMoment:
        return RunMoment(self.now_s, self.next_step, self.shape, self.plan_file)

    def _lost(self, event: WorkerLost) -> None:
        had_role = self.workers.lost(
            event.worker, event.incarnation, event.kind, event.reason, self.now_s
        )
        self._note("lost", f"{event.worker} lost ({event.kind}): {event.reason}")
        lost = LostWorker(event.worker, event.kind, event.reason)
        if self._log.lost(self._moment, lost, had_role=had_role):
            self._clock.must_recover(self.now_s)

    def _decided(self, event: Decided) -> None:
        self._note("decision", event.reason)
        if "last_unrecorded" in event.details:  # done, though no StepDone says so
            self.next_step = max(self.next_step, int(event.details["last_unrecorded"]) + 1)
        if "round" in event.details:
            self._clock.began_round(self.now_s)
            self._log.open(self._moment)
        self._log.decided(event.reason)
        if self._log.is_open and "order" in event.details:
            self._clock.ordered(self.now_s)

    def _considered(self, event: PlanConsidered) -> None:
        self.considered.append(event)
        entered = "entered" if event.entered else "not entered"
        self._note("decision", f"the planner's {event.strategy} is {entered}: {event.reason}")
        self._log.considered(event, entered)

    def _judged(self, event: SlownessJudged) -> None:
        self.judged.append(event)
        self.workers.judged(event.who, event.verdict, event.factor, event.reason, self.now_s)
        self._note("slow", f"{', '.join(event.who)} {event.verdict}: {event.reason}")

    def _recovered(self, event: Recovered) -> None:
        incident = self._conclude(RECOVERY, event.shape, event.file)
        incident.micro_batches = event.micro_batches
        incident.missing = sorted({*incident.missing, *event.lost})
        self._clock.ran_again(event.micro_batches)
        self.workers.gone(event.lost, self.now_s)
        self._plan(event.shape, event.file, event.epoch)
        self.recoveries.append(event)
        self._note("recovery", f"recovered: {event.shape}")

    def _restored(self, event: Restored) -> None:
        self._clock.restored(event.load_s)
        if event.step < self.next_step:
            self._undo(event.step)
        if self._log.is_open or not event.goes_on:
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
        self._clock.concluded(self.now_s)
        return self._log.conclude(self._moment, kind, shape, file)

    def _changed(self, event: PlanChanged) -> None:
        is_return = any(name in self.workers.known for name in event.joining)
        self._back(event.joining)
        self.workers.left(event.leaving, self.now_s)
        self._clock.changed_plan(
            event.stall_s, has_joined=bool(event.joining), is_other=not is_return
        )
        self._plan(event.shape, event.file, event.epoch)
        self.changes.append(event)
        who = f"{', '.join(event.joining)} joined: " if event.joining else ""
        self._note("plan", f"{who}{event.shape}")

    def _back(self, names: Collection[str]) -> None:
        """They take part in steps."""
        self.workers.joined(names, self.now_s)
        self._log.back(names, self.now_s)

    def _coordinator(self, event: CoordinatorStarted) -> None:
        self.term = event.term
        self._clock.lost_coordinator()
        self._log.lost_coordinator(self._moment, event.reason)
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
        self._clock.lose("ending", self.now_s)
        self._clock.begin(self.now_s)
        self._note("end", f"{event.outcome}: {event.reason}")

    # What follows.

    @property
    def wall_s(self) -> float:
        """From the first process to the last event."""
        return self.now_s - self.started_s

    @property
    def is_recovering(self) -> bool:
        """A worker was found lost, and the step in flight is not completed."""
        return self._clock.is_recovering

    def snapshot_age_s(self, now_s: float) -> float | None:
        """Since the state of the newest snapshot in memory; None: there is none."""
        if self.snapshot_step is None:
            return None
        return max(0.0, now_s - self._ended_s.get(self.snapshot_step, self.started_s))

    @property
    def usual_step_s(self) -> float:
        return self._clock.usual_s

    def goodput(self, now_s: float | None = None) -> Budget:
        """Where the time went until now: the parts add up to the wall time."""
        now = self.now_s if now_s is None or self.ended is not None else max(now_s, self.now_s)
        if self.ended is not None:
            return self._clock.budget()
        return self._clock.budget_until(now, is_ready=self.is_ready)

    def longest_stall_s(self) -> float:
        """Over recoveries, restores and planned changes."""
        stalls = [incident.stall_s for incident in self.incidents]
        return max([*stalls, *(change.stall_s for change in self.changes)], default=0.0)

    def downtime_s(self) -> float:
        """Time without training: stalls of incidents and changes, and while it was not running."""
        lost = self.goodput().lost_ms
        causes = ("detection", "planning", "groups", "loading", "joining", "moving state")
        return sum(lost.get(cause, 0.0) for cause in (*causes, "not running")) / 1000
