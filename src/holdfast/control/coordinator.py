"""The coordinator: facts in, effects out. All decisions of a job are made here.

Its state is what the journal says, what agents and workers have told, and the round that is being
held, if any. After every fact it looks at that state and does what is due: it judges which members
are gone, holds rounds, orders changes, and sends every worker what it lacks. Nothing is remembered
as "to be done", so a successor that reads the journal and is told everything by the agents goes on
from the same point.

A successor first waits for the agents of all members of the present epoch, because one that is not
there may simply not have connected yet.

While its process is stopped (a machine is suspended, a container frozen) it cannot know who was
silent: what was said meanwhile is read later than the time that has passed. So its time stands
still then, and whatever counts from some moment on (a silence, a round, a patience) goes on where
it was.
"""

from collections.abc import Sequence

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.deadlines import next_deadline_ms
from holdfast.control.delivery import Sender
from holdfast.control.effects import Disconnect, Effect, StepsRecorded, ToAllNodes
from holdfast.control.ending import GivingUp
from holdfast.control.fact_intake import FactIntake
from holdfast.control.facts import Fact, sender_of
from holdfast.control.giving_up import blame_all, give_up_if_due
from holdfast.control.hang_monitor import HangMonitor
from holdfast.control.job_end import JobEnd
from holdfast.control.job_events import AllReady, Recorded
from holdfast.control.journal_entries import JournalEntry, RunBegun, TermBegun
from holdfast.control.planned import begin_job, follow_change, order_change, want_plan
from holdfast.control.planned_change_queue import PlannedChangeQueue
from holdfast.control.recovery import begin_if_needed, decide_if_answered
from holdfast.control.replanning import Replanner
from holdfast.control.settings import ControlSettings
from holdfast.control.slowness import SlowWatch
from holdfast.control.stopping import stop_if_overdue
from holdfast.control.verdicts import Blame, judge
from holdfast.control.view import CoordinatorView

LOOK_AGAIN_MS = 1000
"""Some answers change with time alone: who may be started again, who is lost for good."""
WATCH_MS = 100
"""How often, at most, hangs are looked for and agents are told which steps are recorded."""
PAUSED_MS = 2000
"""So much later than it wanted to look again, this process was stopped and not only kept waiting
for a processor.
"""


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
        is_successor = state.journal.last is not None and state.journal.run == settings.run
        self._is_ready = is_successor
        self._sender = Sender(state)
        self._end = JobEnd(state)
        self._replanner = Replanner(settings.replan, state)
        self._intake = FactIntake(
            state,
            self._hangs,
            self._giving_up,
            self._sender,
            self._end,
            self._replanner,
            SlowWatch(settings.detect, state),
        )
        self._blame = Blame(settings.max_blame)
        self._begun_ms: int | None = None
        self._due_ms: int | None = None
        """When it wanted to look again, by the clock of its process."""
        self._seen_ms = 0
        """When it looked last, by the same clock."""
        self._paused_ms = 0
        """How far its own time, by which all else is counted, is behind that clock."""
        state.is_gathering = is_successor
        self._expected: dict[str, None] = {}
        self._last_look: tuple[object, ...] = ()
        self._looked_ms = self._watched_ms = self._num_recorded = 0

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
        state.effects = []
        state.now_ms = now_ms = self._own_time_ms(now_ms)
        if self._begun_ms is None:
            self._take_over(now_ms)
        if now_ms - self._looked_ms >= LOOK_AGAIN_MS:
            self._looked_ms = now_ms
            state.processes += 1
            state.stirred.update(dict.fromkeys(state.roster.nodes))
        if node := sender_of(fact):
            self._hangs.received(node, now_ms)
        touched = self._intake.learn(fact)
        self._watch()
        if not state.is_gathering or self._has_gathered():
            self._act()
            self._sender.send_due(touched)
        self._end.say_if_written()
        return state.effects

    def next_deadline_ms(self, now_ms: int) -> int:
        """When a Tick is due, if no fact comes before. It is remembered: what comes long after it
        comes after a pause.
        """
        state, own_ms = self._state, now_ms - self._paused_ms
        due_ms = next_deadline_ms(state, self._hangs, self._giving_up, self._begun_ms, own_ms)
        self._due_ms = due_ms + self._paused_ms
        return self._due_ms

    def _own_time_ms(self, now_ms: int) -> int:
        """It stands still while this process is stopped. When that began is not known: since the
        last look, so none of the time since then counts.
        """
        since_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        if self._due_ms is not None and now_ms - self._due_ms > PAUSED_MS:
            self._due_ms = None  # a pause counts once
            self._paused_ms += since_ms
            if not self.is_over:  # at the end it is not asked any more when it has to look
                self._state.decided(
                    f"the coordinator was paused for {since_ms / 1000:.1f} s, which count against "
                    f"no worker"
                )
        return now_ms - self._paused_ms

    def _take_over(self, now_ms: int) -> None:
        self._begun_ms = now_ms
        self._giving_up.moved(now_ms)
        state = self._state
        state.record(TermBegun(self.settings.term or state.journal.term + 1))
        if state.journal.run != self.settings.run:
            state.record(RunBegun(self.settings.run))
        if state.journal.stop is not None:
            state.stop_ms = now_ms
        members = [m for m in state.journal.members() if not state.journal.is_fenced(m)]
        state.roster.expect((member.name for member in members), now_ms)
        self._expected = dict.fromkeys(state.roster.nodes)
        if state.journal.ended is not None:
            self._end.say_again(state.journal.ended)

    # What is due

    def _has_gathered(self) -> bool:
        """Are all here that may be in the present epoch, or was there time enough?"""
        state = self._state
        assert self._begun_ms is not None
        is_late = state.now_ms - self._begun_ms >= self.settings.lost_after_ms
        if not is_late and any(node in state.roster.away for node in self._expected):
            return False
        state.is_gathering = False
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
        state.standstill = found.standstill or state.standstill
        state.stopped = tuple(self._hangs.stopped())
        state.effects += [Disconnect(node) for node in found.lost_nodes]
        state.effects += state.snapshots.look()
        state.effects += state.snapshots.pace_checkpoints(state.now_ms)
        state.look_at_protection()
        if state.steps.next_step > self._num_recorded:
            self._num_recorded = state.steps.next_step
            state.effects.append(ToAllNodes(StepsRecorded(step=self._num_recorded)))

    def _act(self) -> None:
        state = self._state
        assert self._begun_ms is not None
        if state.journal.ended is None:
            if self._giving_up.is_strict:
                blame_all(state, self._giving_up)
            else:
                judge(state)
            follow_change(state)
            if not self._giving_up.is_strict:
                begin_if_needed(state, self._blame)
                decide_if_answered(state, self._blame)
            begin_job(state, self._begun_ms)
            self._begin_if_ready()
            if self._is_news():
                self._replanner.look()
                order_change(state)
            self._end.end_if_done()
            stop_if_overdue(state)
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
            want_plan(self._state, wanted)

    def _is_news(self) -> bool:
        """Could the answer to "which change is next" differ from the last time?"""
        state, status = self._state, self._state.status
        waits = (bool(status.unheard), bool(status.broken), bool(status.stuck))
        look = (state.changes, state.processes, tuple(state.lost_nodes()), waits)
        is_news, self._last_look = look != self._last_look, look
        return is_news
