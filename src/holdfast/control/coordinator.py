"""The coordinator: facts in, effects out.

Its state is what the journal says, what agents and workers have told, and the round that is being
held, if any. After every fact it looks at that state and does what is due: it judges who is gone,
holds rounds, orders changes, and sends every worker what it lacks. Nothing is remembered as "to be
done", so a successor that reads the journal and hears everybody goes on from the same point.

A successor first waits for the agents of everybody who may be in the present epoch, because whoever
is not there may simply not have connected yet.
"""

from collections.abc import Sequence

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.delivery import Sender
from holdfast.control.effects import Effect, Fail, Finish
from holdfast.control.facts import (
    Fact,
    NodeConnected,
    NodeDead,
    NodeLost,
    PlanWanted,
    SnapshotKept,
    StopWanted,
    WorkerExited,
    WorkerHung,
    WorkerTold,
)
from holdfast.control.journal_entries import Ended, JournalEntry, StopAsked, TermBegun, Wanted
from holdfast.control.planned import begin_job, follow_change, order_change, void
from holdfast.control.recovery import begin_if_needed, decide_if_answered
from holdfast.control.report import Member
from holdfast.control.settings import ControlSettings
from holdfast.control.state import Kept, WorkerState
from holdfast.control.verdicts import Blame, judge
from holdfast.plan.plan import Plan
from holdfast.plan.text import format_plan
from holdfast.plan.workers import node_of

LOOK_AGAIN_MS = 1000
"""Some answers change with time alone: who may be started again, who is lost for good."""


class Coordinator:
    """`history`: the journal of the coordinators before, empty for a new job."""

    def __init__(self, settings: ControlSettings, history: Sequence[JournalEntry] = ()) -> None:
        self.settings = settings
        self._desk = CoordinatorState(settings)
        self._desk.past.read(history)
        self._sender = Sender(self._desk)
        self._blame = Blame(settings.max_blame)
        self._born_ms: int | None = None
        self._is_gathering = bool(history)
        self._expected: dict[str, None] = {}
        self._last_look: tuple[object, ...] = ()
        self._looked_ms = 0

    @property
    def term(self) -> int:
        return self._desk.past.term

    @property
    def is_over(self) -> bool:
        return self._desk.past.ended is not None

    def snapshots(self) -> list[Kept]:
        """All parts that are known to be in reach."""
        return self._desk.roster.kept()

    def take(self, fact: Fact, now_ms: int) -> list[Effect]:
        desk = self._desk
        desk.now_ms, desk.effects = now_ms, []
        if self._born_ms is None:
            self._take_over(now_ms)
        if now_ms - self._looked_ms >= LOOK_AGAIN_MS:
            self._looked_ms = now_ms
            desk.processes += 1
            desk.stirred.update(dict.fromkeys(desk.roster.nodes))
        touched = self._learn(fact)
        if not self._is_gathering or self._has_gathered():
            self._act()
            self._sender.send_due(touched)
        return desk.effects

    def _take_over(self, now_ms: int) -> None:
        self._born_ms = now_ms
        desk = self._desk
        desk.record(TermBegun(desk.past.term + 1))
        members = [m for m in desk.past.members() if not desk.past.is_fenced(m)]
        desk.roster.expect((member.name for member in members), now_ms)
        self._expected = dict.fromkeys(desk.roster.nodes)
        if desk.past.ended is not None:
            self._say_the_end(desk.past.ended)

    # Facts

    def _learn(self, fact: Fact) -> list[Member]:
        """Whom it concerns."""
        desk = self._desk
        match fact:
            case NodeConnected():
                return self._connected(fact)
            case NodeLost(node=node):
                desk.roster.lose(node, desk.now_ms)
            case NodeDead(node=node, reason=reason, will_return=will_return):
                dead = dict.fromkeys(desk.roster.bury(node, will_return=will_return))
                dead.update(dict.fromkeys(self._members_on(node)))
                desk.gone.update((member, reason or f"{node} is dead") for member in dead)
                desk.changed()
            case WorkerTold(state=state):
                return self._told(state)
            case WorkerExited(member=member, how=how):
                desk.roster.exited(member)
                desk.stir(node_of(member.name))
                desk.standing.look_at(member, desk.now_ms)
                desk.gone[member] = how or "its process has ended"
            case WorkerHung(member=member, reason=reason):
                desk.suspected[member] = reason or "it makes no progress"
            case SnapshotKept(node=node, kept=kept):
                if node in desk.roster.nodes:
                    desk.roster.nodes[node].kept = kept
            case PlanWanted(plan=plan, reason=reason, at_step=at_step):
                self._want(plan, reason, at_step)
            case StopWanted(reason=reason):
                desk.record(StopAsked(reason))
                void(desk, "the job stops")
        return []

    def _want(self, plan: Plan, reason: str, at_step: int) -> None:
        desk = self._desk
        if plan.units != self.settings.plan.units:
            desk.decided("a plan for another model is refused", reason=reason)
            return
        desk.record(Wanted(format_plan(plan), reason, at_step))
        void(desk, "another plan is wanted")

    def _connected(self, fact: NodeConnected) -> list[Member]:
        desk = self._desk
        self._sender.forget(fact.node)
        vanished = dict.fromkeys(desk.roster.connect(fact))
        here = [state.member for state in fact.workers]
        missing = [m for m in self._members_on(fact.node) if m not in here]
        vanished.update(dict.fromkeys(missing))
        desk.gone.update((member, "its process is not there any more") for member in vanished)
        for state in fact.workers:
            self._told(state)
        for member in vanished:
            desk.standing.look_at(member, desk.now_ms)
        desk.stir(fact.node)
        return [state.member for state in fact.workers]

    def _members_on(self, node: str) -> list[Member]:
        members = self._desk.past.members()
        return [member for member in members if node_of(member.name) == node]

    def _told(self, state: WorkerState) -> list[Member]:
        desk = self._desk
        if state.member.name not in desk.roster.awake or state.member not in desk.roster.states:
            desk.stir(node_of(state.member.name))
        desk.roster.told(state)
        desk.suspected.pop(state.member, None)
        if desk.round is not None and state.report is not None:
            desk.round.answered(state.report)
        desk.standing.look_at(state.member, desk.now_ms)
        return [state.member]

    # What is due

    def _has_gathered(self) -> bool:
        """Is everybody here who may be in the present epoch, or was there time enough?"""
        desk = self._desk
        assert self._born_ms is not None
        is_late = desk.now_ms - self._born_ms >= self.settings.lost_after_ms
        if not is_late and any(node in desk.roster.away for node in self._expected):
            return False
        self._is_gathering = False
        desk.changed()
        return True

    def _act(self) -> None:
        desk = self._desk
        assert self._born_ms is not None
        if desk.past.ended is None:
            judge(desk)
            follow_change(desk)
            begin_if_needed(desk, self._blame)
            decide_if_answered(desk, self._blame)
            begin_job(desk, self._born_ms)
            if self._is_news():
                order_change(desk)
            self._end_if_done()
        self._sender.start_missing()

    def _is_news(self) -> bool:
        """Could the answer to "which change is next" differ from the last time?"""
        desk, standing = self._desk, self._desk.standing
        waits = (bool(standing.unheard), bool(standing.broken), bool(standing.stuck))
        look = (desk.changes, desk.processes, tuple(desk.lost_nodes()), waits)
        is_news, self._last_look = look != self._last_look, look
        return is_news

    def _end_if_done(self) -> None:
        desk = self._desk
        last = desk.past.last
        if last is None or desk.round is not None or desk.standing.undone:
            return
        desk.finish(min(state.version for state in self._seated().values()))

    def _say_the_end(self, ended: Ended) -> None:
        """A successor says it again: nobody may have heard it."""
        is_failure, effects = ended.is_failure, self._desk.effects
        effects.append(Fail(ended.reason) if is_failure else Finish(ended.version))

    def _seated(self) -> dict[Member, WorkerState]:
        last = self._desk.past.last
        assert last is not None
        states = self._desk.roster.states
        return {m: s for m, s in states.items() if last.incarnations.get(m.name) == m.incarnation}
