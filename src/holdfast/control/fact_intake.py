"""What every fact changes in what the coordinator knows. What follows from it is decided elsewhere,
when the whole state is looked at.
"""

from collections.abc import Sequence

import msgspec

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.delivery import Sender
from holdfast.control.ending import GivingUp, said
from holdfast.control.facts import (
    Beat,
    CheckpointsFound,
    CheckpointWanted,
    EpochReported,
    Fact,
    NodeConnected,
    NodeDead,
    NodeLost,
    NodesAbsent,
    PlanAnswered,
    PlanWanted,
    ProbeAnswered,
    StepReported,
    StopWanted,
    WorkerExited,
    WorkerFailing,
    WorkerHung,
    WorkerSlow,
    WorkerStarted,
    WorkerTold,
)
from holdfast.control.hang_monitor import HangMonitor
from holdfast.control.job_end import JobEnd
from holdfast.control.job_events import IdleNodeDied, JobEvent, StepCompleted
from holdfast.control.journal_entries import StopAsked
from holdfast.control.measuring import learn_costs
from holdfast.control.planned import void, want_plan
from holdfast.control.replanning import Replanner
from holdfast.control.report import Member
from holdfast.control.slowness import SlowWatch
from holdfast.control.snapshots.messages import Copied, NodeHolds, Persisted, Unloadable
from holdfast.control.state import WorkerState
from holdfast.control.step_aggregator import HoldersDiffer
from holdfast.plan.workers import node_of


class FactIntake:
    def __init__(
        self,
        state: CoordinatorState,
        hangs: HangMonitor,
        giving_up: GivingUp,
        sender: Sender,
        end: JobEnd,
        replanner: Replanner,
        slowness: SlowWatch,
    ) -> None:
        self._state, self._hangs, self._giving_up = state, hangs, giving_up
        self._sender, self._end, self._replanner = sender, end, replanner
        self._slowness = slowness

    def learn(self, fact: Fact) -> list[Member]:
        """The members it concerns."""
        state = self._state
        match fact:
            case NodeConnected():
                return self._connected(fact)
            case NodeLost(node=node, left=left):
                state.roster.lose(node, self._last_heard_ms(node))
                self._end.may_have_missed(node)
                state.snapshots.lost(node, left)
                self._hangs.suspend()
            case NodeDead():
                self._node_dead(fact)
            case NodesAbsent(nodes=nodes):
                state.roster.absent = dict.fromkeys(nodes)
            case Beat(sent_ms=sent_ms, places=places):
                moved = self._hangs.beat(places, sent_ms, state.now_ms)
                state.clear(moved)
            case WorkerStarted(member=member, pid=pid):
                state.roster.pids[member.name] = pid
                if member not in state.roster.states:  # else the worker was faster than its agent
                    return self._told(WorkerState(member=member))
            case WorkerTold(state=told):
                return self._told(told)
            case WorkerExited():
                self._exited(fact)
            case ProbeAnswered():
                self._slowness.answered(fact)
            case WorkerHung(member=member, reason=reason):
                state.suspected[member] = reason or "it makes no progress"
            case WorkerSlow(worker=worker, factor=factor):
                state.judge_slow(worker, factor)
            case WorkerFailing() | StepReported() | EpochReported():
                self._reported(fact)
            case NodeHolds() | Persisted() | Copied() | Unloadable() | CheckpointsFound():
                self._told_of_snapshots(fact)
            case PlanWanted():
                want_plan(state, fact)
            case PlanAnswered(answer=answer):
                self._replanner.answered(answer)
            case CheckpointWanted(reason=reason):
                state.effects += state.snapshots.persist_now(reason)
            case StopWanted(reason=reason) if state.journal.stop is None:
                # Once: asking again gives the job no more time.
                state.record(StopAsked(reason))
                state.stop_ms = state.now_ms
                void(state, "the job stops")
        return []

    def _node_dead(self, fact: NodeDead) -> None:
        """With its agent. If another agent has come by now, that has said who is gone."""
        state, node = self._state, fact.node
        if state.roster.is_replaced(node, fact.agent):
            return
        known = state.roster.nodes.get(node)
        was_alive = known is not None and not known.is_dead
        here = state.roster.remove_dead(node, will_return=fact.will_return)
        dead = dict.fromkeys((*here, *state.journal.members_on(node)))
        state.snapshots.lost(node, fact.left)
        self._end.may_have_missed(node)
        state.snapshots.node_died()
        state.gone.update(dict.fromkeys(dead, fact.reason or f"{node} is dead"))
        for member in dead:
            self._hangs.gone(member)
        if was_alive and not dead:
            state.happened([IdleNodeDied(node, fact.reason or f"{node} is dead")])
        state.changed()

    def _exited(self, fact: WorkerExited) -> None:
        state, member = self._state, fact.member
        state.roster.exited(member)
        self._hangs.gone(member)
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
            case NodeHolds(node=node, arenas=arenas, costs=costs):
                state.effects += snapshots.update(node, arenas, costs)
            case Persisted():
                snapshots.written(fact)
                self._end.written(fact)
            case Copied():
                snapshots.copied(fact)
            case Unloadable(version=version, reason=reason):
                state.effects += snapshots.refuse(version, reason)
            case CheckpointsFound(checkpoints=checkpoints):
                snapshots.found_on_disk(checkpoints)

    def _happened(self, events: Sequence[JobEvent]) -> None:
        state = self._state
        state.happened([self._with_copies(event) for event in events])
        self._replanner.happened(events)
        for event in events:
            if isinstance(event, StepCompleted):
                self._hangs.stepped(event.report.epoch, event.seconds, state.now_ms)
                state.judge_step(event.report)
                learn_costs(state, event)
                self._slowness.stepped(event)
                state.effects += state.snapshots.place_copies(event.report, state.profile)

    def _with_copies(self, event: JobEvent) -> JobEvent:
        """A step is told with what was copied meanwhile."""
        if not isinstance(event, StepCompleted):
            return event
        copied = self._state.snapshots.stepped(event.seconds)
        return msgspec.structs.replace(event, copied=copied)

    def _last_heard_ms(self, node: str) -> int:
        """A silence counts from the last word, not from when it ended the connection; but at most
        half of it: it may be the coordinator that was stopped.
        """
        state = self._state
        longest_ms = state.settings.lost_after_ms // 2
        return max(self._hangs.received_ms(node, state.now_ms), state.now_ms - longest_ms)

    def _connected(self, fact: NodeConnected) -> list[Member]:
        state = self._state
        self._sender.forget(fact.node)
        self._end.may_have_missed(fact.node)
        for member in state.roster.on_node(fact.node):
            self._hangs.gone(member)
        vanished = dict.fromkeys(state.roster.connect(fact))
        state.snapshots.connected(fact.node, fact.arenas)
        here = [told.member for told in fact.workers]
        missing = [m for m in state.journal.members_on(fact.node) if m not in here]
        vanished.update(dict.fromkeys(missing))
        state.gone.update((member, "its process is not there any more") for member in vanished)
        for told in fact.workers:
            self._told(told)
        for member in vanished:
            state.status.look_at(member, state.now_ms)
        state.stir(fact.node)
        return [told.member for told in fact.workers]

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
