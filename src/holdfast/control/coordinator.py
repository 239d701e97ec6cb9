"""The coordinator: facts in, effects out. All decisions of a job are made here.

Its state is what the journal says, what agents and workers have told, and the round that is being
held, if any. After every fact it looks at that state and does what is due: it judges which members
are gone, holds rounds, orders changes, and sends every worker what it lacks. Nothing is remembered
as "to be done", so a successor that reads the journal and is told everything by the agents goes on
from the same point.

A successor first waits for the agents of all members of the present epoch, because one that is not
there may simply not have connected yet.
"""

from collections.abc import Sequence

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.deadlines import next_deadline_ms
from holdfast.control.delivery import Sender
from holdfast.control.effects import Disconnect, Effect, Fail, StepsRecorded, ToAllNodes
from holdfast.control.ending import GivingUp, end_of_skipped, said
from holdfast.control.facts import (
    Beat,
    CheckpointsFound,
    EpochReported,
    Fact,
    NodeConnected,
    NodeDead,
    NodeLost,
    PlanWanted,
    StepReported,
    StopWanted,
    WorkerExited,
    WorkerFailing,
    WorkerHung,
    WorkerStarted,
    WorkerTold,
    sender_of,
)
from holdfast.control.giving_up import blame_all, give_up_if_due
from holdfast.control.hang_monitor import HangMonitor
from holdfast.control.job_events import AllReady, JobEvent, StepCompleted
from holdfast.control.journal_entries import Ended, JournalEntry, StopAsked, TermBegun, Wanted
from holdfast.control.planned import begin_job, follow_change, order_change, void
from holdfast.control.planned_change_queue import PlannedChangeQueue
from holdfast.control.recovery import begin_if_needed, decide_if_answered
from holdfast.control.report import Member
from holdfast.control.settings import ControlSettings
from holdfast.control.snapshots.messages import Copied, NodeHolds, Persisted, Unloadable
from holdfast.control.state import WorkerState
from holdfast.control.step_aggregator import HoldersDiffer, Recorded
from holdfast.control.verdicts import Blame, judge
from holdfast.control.view import CoordinatorView
from holdfast.plan.plan import Plan
from holdfast.plan.text import format_plan
from holdfast.plan.workers import node_of

LOOK_AGAIN_MS = 1000
"""Some answers change with time alone: who may be started again, who is lost for good."""
WATCH_MS = 100
"""How often, at most, hangs are looked for and agents are told which steps are recorded."""


REPORTS_MS = 1000
"""How long the end of a job waits for reports of its last steps."""
LAST_WRITE_MS = 60_000
"""How long the end of a job waits for its last checkpoint."""


class Coordinator:
    """`history`: the journal of the coordinators before, empty for a new job; `recorded`: how far
    their run log goes.
    """

    def __init__(
        self,
        settings: ControlSettings,
        history: Sequence[JournalEntry] = (),
        recorded: Recorded | None = None,
    ) -> None:
        self.settings = settings
        self._state = state = CoordinatorState(settings)
        state.read(history, recorded)
        self._hangs = HangMonitor(settings, state.journal, state.roster)
        self._changes = PlannedChangeQueue(settings.changes, state.journal)
        self._giving_up = GivingUp(
            is_strict=settings.ends_with_failure, patience_ms=settings.patience_ms, now_ms=0
        )
        self.view = CoordinatorView(state, self._hangs)
        self._is_ready = bool(history)
        self._sender = Sender(state)
        self._blame = Blame(settings.max_blame)
        self._born_ms: int | None = None
        self._is_gathering = bool(history)
        self._expected: dict[str, None] = {}
        self._last_look: tuple[object, ...] = ()
        self._looked_ms = self._watched_ms = self._num_recorded = 0
        self._last_write_ms: int | None = None
        """Until when the last checkpoint is awaited; None: it is not."""
        self._done_ms: int | None = None
        """Since when all members are done; None: they are not."""

    @property
    def term(self) -> int:
        return self._state.journal.term

    @property
    def newest_snapshot(self) -> int | None:
        """Steps done in the newest snapshot that is whole in memory."""
        return self._state.snapshots.newest_step

    @property
    def is_over(self) -> bool:
        return self._state.journal.ended is not None

    def take(self, fact: Fact, now_ms: int) -> list[Effect]:
        state = self._state
        state.now_ms, state.effects = now_ms, []
        if self._born_ms is None:
            self._take_over(now_ms)
        if now_ms - self._looked_ms >= LOOK_AGAIN_MS:
            self._looked_ms = now_ms
            state.processes += 1
            state.stirred.update(dict.fromkeys(state.roster.nodes))
        if node := sender_of(fact):
            self._hangs.received(node, now_ms)
        touched = self._learn(fact)
        self._watch()
        if not self._is_gathering or self._has_gathered():
            self._act()
            self._sender.send_due(touched)
        self._finish_if_written()
        return state.effects

    def next_deadline_ms(self, now_ms: int) -> int:
        """When a Tick is due, if no fact comes before."""
        return next_deadline_ms(self._state, self._hangs, self._giving_up, self._born_ms, now_ms)

    def _take_over(self, now_ms: int) -> None:
        self._born_ms = now_ms
        self._giving_up.moved(now_ms)
        state = self._state
        state.record(TermBegun(state.journal.term + 1))
        members = [m for m in state.journal.members() if not state.journal.is_fenced(m)]
        state.roster.expect((member.name for member in members), now_ms)
        self._expected = dict.fromkeys(state.roster.nodes)
        if state.journal.ended is not None:
            self._say_the_end(state.journal.ended)

    # Facts

    def _learn(self, fact: Fact) -> list[Member]:
        """The members it concerns."""
        state = self._state
        match fact:
            case NodeConnected():
                return self._connected(fact)
            case NodeLost(node=node, left=left):
                state.roster.lose(node, state.now_ms)
                state.snapshots.lost(node, left)
                self._hangs.suspend()
            case NodeDead():
                self._node_dead(fact)
            case Beat(sent_ms=sent_ms, places=places):
                moved = self._hangs.beat(places, sent_ms, state.now_ms)
                state.clear(moved)
            case WorkerStarted(member=member, pid=pid):
                state.roster.pids[member.name] = pid
                return self._told(WorkerState(member=member))
            case WorkerTold(state=told):
                return self._told(told)
            case WorkerExited():
                self._exited(fact)
            case WorkerHung(member=member, reason=reason):
                state.suspected[member] = reason or "it makes no progress"
            case WorkerFailing() | StepReported() | EpochReported():
                self._reported(fact)
            case NodeHolds() | Persisted() | Copied() | Unloadable() | CheckpointsFound():
                self._told_of_snapshots(fact)
            case PlanWanted(plan=plan, reason=reason, at_step=at_step):
                self._want(plan, reason, at_step)
            case StopWanted(reason=reason):
                state.record(StopAsked(reason))
                void(state, "the job stops")
        return []

    def _node_dead(self, fact: NodeDead) -> None:
        state, node = self._state, fact.node
        here = state.roster.remove_dead(node, will_return=fact.will_return)
        dead = dict.fromkeys((*here, *self._members_on(node)))
        state.snapshots.lost(node, fact.left)
        state.gone.update(dict.fromkeys(dead, fact.reason or f"{node} is dead"))
        for member in dead:
            self._hangs.gone(member.name)
        state.changed()

    def _exited(self, fact: WorkerExited) -> None:
        state, member = self._state, fact.member
        state.roster.exited(member)
        self._hangs.gone(member.name)
        state.stir(node_of(member.name))
        state.status.look_at(member, state.now_ms)
        state.gone[member] = fact.how or "its process has ended"
        if fact.has_said_why:
            state.last_words = f"; {member.name} {fact.how}"

    def _reported(self, fact: WorkerFailing | StepReported | EpochReported) -> None:
        """What a fenced worker has done on its own counts for nothing."""
        state, member = self._state, fact.member
        self._giving_up.moved(state.now_ms)
        if state.journal.is_fenced(member) or state.journal.ended is not None:
            self._happened(state.steps.add_late(member.name, fact))
            return
        state.clear([member.name])
        try:
            match fact:
                case StepReported(report=report):
                    self._happened(state.steps.add_step(member.name, report))
                case EpochReported(report=entered):
                    self._happened(state.steps.add_change(member.name, entered))
                case WorkerFailing(line=line, is_consequence=True):
                    self._giving_up.failed(said(member.name, line, True), state.now_ms)
        except HoldersDiffer as error:
            state.fail(str(error))

    def _told_of_snapshots(
        self, fact: NodeHolds | Persisted | Copied | Unloadable | CheckpointsFound
    ) -> None:
        state, snapshots = self._state, self._state.snapshots
        match fact:
            case NodeHolds(node=node, arenas=arenas, waits_s=waits_s):
                state.effects += snapshots.update(node, arenas, waits_s)
            case Persisted():
                snapshots.written(fact)
                if self._last_write_ms is not None and snapshots.is_last(fact):
                    self._last_write_ms = state.now_ms
            case Copied():
                snapshots.copied(fact)
            case Unloadable(version=version, reason=reason):
                state.effects += snapshots.refuse(version, reason)
            case CheckpointsFound(checkpoints=checkpoints):
                snapshots.found_on_disk(checkpoints)

    def _happened(self, events: Sequence[JobEvent]) -> None:
        state = self._state
        state.happened(events)
        for event in events:
            if isinstance(event, StepCompleted):
                self._hangs.stepped(event.report.epoch, event.seconds, state.now_ms)
                why = end_of_skipped(event.report, self.settings.non_finite)
                if why and state.journal.ended is None:
                    state.fail(why)
                state.snapshots.stepped(event.seconds)

    def _want(self, plan: Plan, reason: str, at_step: int) -> None:
        state = self._state
        if plan.units != self.settings.plan.units:
            state.decided("a plan for another model is refused", reason=reason)
            return
        state.record(Wanted(format_plan(plan), reason, at_step))
        void(state, "another plan is wanted")

    def _connected(self, fact: NodeConnected) -> list[Member]:
        state = self._state
        self._sender.forget(fact.node)
        for member in state.roster.on_node(fact.node):
            self._hangs.gone(member.name)
        vanished = dict.fromkeys(state.roster.connect(fact))
        state.snapshots.connected(fact.node, fact.arenas)
        here = [told.member for told in fact.workers]
        missing = [m for m in self._members_on(fact.node) if m not in here]
        vanished.update(dict.fromkeys(missing))
        state.gone.update((member, "its process is not there any more") for member in vanished)
        for told in fact.workers:
            self._told(told)
        for member in vanished:
            state.status.look_at(member, state.now_ms)
        state.stir(fact.node)
        return [told.member for told in fact.workers]

    def _members_on(self, node: str) -> list[Member]:
        members = self._state.journal.members()
        return [member for member in members if node_of(member.name) == node]

    def _told(self, told: WorkerState) -> list[Member]:
        state = self._state
        if told.member.name not in state.roster.awake or told.member not in state.roster.states:
            state.stir(node_of(told.member.name))
        state.roster.told(told)
        state.suspected.pop(told.member, None)
        self._giving_up.moved(state.now_ms)
        self._hangs.told(told)
        if state.round is not None and told.report is not None:
            state.round.answered(told.report)
        state.status.look_at(told.member, state.now_ms)
        return [told.member]

    # What is due

    def _has_gathered(self) -> bool:
        """Are all here that may be in the present epoch, or was there time enough?"""
        state = self._state
        assert self._born_ms is not None
        is_late = state.now_ms - self._born_ms >= self.settings.lost_after_ms
        if not is_late and any(node in state.roster.away for node in self._expected):
            return False
        self._is_gathering = False
        state.changed()
        return True

    def _watch(self) -> None:
        """Look for hangs and silent nodes, now and then."""
        state = self._state
        if state.now_ms - self._watched_ms < WATCH_MS or state.journal.ended is not None:
            return
        self._watched_ms = state.now_ms
        self._hangs.begin_if_all_train(state.now_ms)
        found = self._hangs.look(state.now_ms)
        state.suspected.update(found.hung)
        state.stopped = tuple(self._hangs.stopped())
        state.effects += [Disconnect(node) for node in found.lost_nodes]
        state.effects += state.snapshots.look()
        if state.steps.next_step > self._num_recorded:
            self._num_recorded = state.steps.next_step
            state.effects.append(ToAllNodes(StepsRecorded(step=self._num_recorded)))

    def _act(self) -> None:
        state = self._state
        assert self._born_ms is not None
        if state.journal.ended is None:
            if self._giving_up.is_strict:
                blame_all(state, self._giving_up)
            else:
                judge(state)
            follow_change(state)
            if not self._giving_up.is_strict:
                begin_if_needed(state, self._blame)
                decide_if_answered(state, self._blame)
            begin_job(state, self._born_ms)
            self._begin_if_ready()
            if self._is_news():
                order_change(state)
            self._end_if_done()
        if state.journal.ended is None:
            give_up_if_due(state, self._giving_up, self.view.plan)
        if not self._giving_up.has_failures:
            self._sender.start_missing()

    def _begin_if_ready(self) -> None:
        state = self._state
        if not self._is_ready and state.journal.last is not None and not state.status.unheard:
            self._is_ready = True
            state.happened([AllReady(dict(state.roster.pids))])
        if self._is_ready and (wanted := self._changes.due()) is not None:
            self._want(wanted.plan, wanted.reason, wanted.at_step)

    def _finish_if_written(self) -> None:
        """The end is said when the newest version is on disk, or was awaited for long enough."""
        state = self._state
        if state.end is None:
            return
        if self._last_write_ms is None:
            state.effects += state.snapshots.look()
            asked = state.snapshots.persist_last(state.end.reason)
            state.effects += asked
            self._last_write_ms = state.now_ms + LAST_WRITE_MS if asked else state.now_ms
        if state.now_ms >= self._last_write_ms:
            state.effects.append(state.end)
            state.end = None

    def _is_news(self) -> bool:
        """Could the answer to "which change is next" differ from the last time?"""
        state, status = self._state, self._state.status
        waits = (bool(status.unheard), bool(status.broken), bool(status.stuck))
        look = (state.changes, state.processes, tuple(state.lost_nodes()), waits)
        is_news, self._last_look = look != self._last_look, look
        return is_news

    def _end_if_done(self) -> None:
        state = self._state
        last = state.journal.last
        if last is None or state.round is not None or state.status.undone:
            self._done_ms = None
            return
        if self._done_ms is None:
            self._done_ms = state.now_ms
        version = min(told.version for told in self._seated().values())
        if state.steps.next_step >= version or state.now_ms - self._done_ms >= REPORTS_MS:
            state.finish(version)

    def _say_the_end(self, ended: Ended) -> None:
        """A successor says it again: the launcher may not know."""
        if ended.is_failure:
            self._state.effects.append(Fail(ended.reason))
        else:
            self._state.end = self._state.end_of(ended.version)

    def _seated(self) -> dict[Member, WorkerState]:
        last = self._state.journal.last
        assert last is not None
        states = self._state.roster.states
        return {m: s for m, s in states.items() if last.incarnations.get(m.name) == m.incarnation}
