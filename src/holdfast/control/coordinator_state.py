"""What the parts of the coordinator share: what is known, and the effects that are piling up."""

from collections.abc import Iterable, Mapping, Sequence
from math import log

from holdfast.control.costs import CostBook
from holdfast.control.effects import Effect, Explain, Fail, Finish, Happened, Record
from holdfast.control.ending import outcome_at
from holdfast.control.job_events import JobEvent, ProtectionFound, Recorded
from holdfast.control.journal_entries import Ended, JournalEntry, SlowJudged, Started
from holdfast.control.journal_state import JournalState
from holdfast.control.member_status import MemberStatus
from holdfast.control.non_finite import GoBack, LeaveOut, NonFiniteSteps, StopAtStep
from holdfast.control.order import Share
from holdfast.control.report import Member
from holdfast.control.roster import Roster
from holdfast.control.rounds import Round
from holdfast.control.settings import ControlSettings
from holdfast.control.snapshots.coordination import SnapshotCoordination
from holdfast.control.snapshots.protection import ProtectionWatch
from holdfast.control.step_aggregator import StepAggregator
from holdfast.control.worker_reports import StepReport
from holdfast.plan.profile import Profile
from holdfast.plan.workers import node_of

SAME_SPEED = 0.02
"""Between two verdicts on a slow worker: less is not worth a line in the journal."""


class CoordinatorState:
    def __init__(self, settings: ControlSettings) -> None:
        self.settings = settings
        self.journal = JournalState(settings.plan)
        self.roster = Roster()
        self.status = MemberStatus(self.journal, self.roster)
        self.steps = StepAggregator(settings.first_step)
        self.snapshots = SnapshotCoordination(settings.snapshots, self.journal, self.roster)
        self.protection = ProtectionWatch()
        self.non_finite = NonFiniteSteps(
            settings.non_finite,
            settings.go_back_tries,
            lambda before: self.snapshots.newest_loadable(before) is not None,
        )
        self.go_back: GoBack | None = None
        """Wanted because of a step that was not finite, until it is ordered."""
        self.costs = CostBook()
        self.round: Round | None = None
        self.shares: dict[str, Share] = {}
        """Of the last order, if it was decided in this term."""
        self.gone: dict[Member, str] = {}
        """Deaths that were seen and not judged yet."""
        self.suspected: dict[Member, str] = {}
        """Workers that hang, until they move or tell something."""
        self.standstill = ""
        """Why one worker hangs that cannot be named, until a worker moves or a round begins."""
        self.moved_ms = 0
        """When a worker last did: another action or step in a beat, or a report."""
        self.stopped: tuple[Member, ...] = ()
        """Workers that are stopped by a signal now."""
        self.last_words = ""
        """Of the last worker that said why it ended, to be said with a failure."""
        self.spared: dict[Member, str] = {}
        """Suspects that hold what no other worker holds."""
        self.profile = Profile()
        """What things cost in this job, as far as it is measured."""
        self.joining: tuple[int, int] = (0, 0)
        """The change that waits for joiners, and since when."""
        self.entering_ms: int | None = None
        """Since when some members of an order are not in it, and it is due."""
        self.vain_rounds = 0
        """Held because an order was not entered in time, one after the other."""
        self.end: Finish | None = None
        """To be said once the last checkpoint is written."""
        self.is_gathering = False
        """A successor still waits for the agents of the present epoch."""
        self.stop_ms: int | None = None
        """When a stop was asked for."""
        self.now_ms = 0
        self.effects: list[Effect] = []
        self.changes = 0
        """Counts everything that may concern more than one member."""
        self.processes = 0
        """Counts what came and went: processes, connections."""
        self.stirred: dict[str, None] = {}
        """Nodes where it did, since it was last checked that all their processes are there."""

    def read(self, history: Sequence[JournalEntry], recorded: Recorded | None) -> None:
        """What coordinators before this one have written down."""
        for entry in history:
            before = self.journal.last
            self.journal.note(entry)
            self.steps.note(entry, self.journal, before)
        if recorded is not None:
            self.steps.resume(recorded)

    def record(self, entry: JournalEntry) -> None:
        before = self.journal.last
        self.journal.note(entry)
        self.effects.append(Record(entry))
        self.happened(self.steps.note(entry, self.journal, before))
        if not isinstance(entry, Started):
            self.changed()

    def judge_step(self, report: StepReport) -> None:
        """What follows from a step that was not finite. While the job is about to go back, steps
        tell nothing.
        """
        if self.journal.ended is not None or self.go_back is not None:
            return
        match self.non_finite.take(report):
            case StopAtStep(reason=reason):
                self.fail(reason)
            case LeaveOut(reason=reason):
                self.decided(reason, step=str(report.step))
            case GoBack() as found:
                self.go_back = found

    def look_at_protection(self) -> None:
        """Between two orders there is nothing to say: which plan is in force is open. At the end of
        the job workers have left, and nothing is waited for.
        """
        last, is_end = self.journal.last, self.end is not None
        is_open = self.round is not None or self.is_gathering
        if last is None or is_open or (self.status.unheard and not is_end):
            return
        found = self.snapshots.protection(last.number)
        is_waiting = self.snapshots.is_awaited and not is_end
        news = self.protection.look(found, self.now_ms, is_waiting=is_waiting)
        if news is not None:
            self.happened([ProtectionFound(news)])

    def stir(self, node: str) -> None:
        self.processes += 1
        self.stirred[node] = None

    def changed(self) -> None:
        self.changes += 1
        self.status.look_at_all(self.now_ms)

    def happened(self, events: Iterable[JobEvent]) -> None:
        self.effects += [Happened(event) for event in events]

    def decided(self, text: str, **details: str) -> None:
        self.effects.append(Explain(text, details))

    def finish(self, version: int, reason: str = "") -> None:
        """The job is over with this version, whatever was not told of it until now."""
        self.happened(self.steps.conclude(version))
        self.record(Ended("done", version=version))
        self.decided(f"done at version {version}" + (f": {reason}" if reason else ""))
        self.end = self.end_of(version)

    def end_of(self, version: int) -> Finish:
        outcome, reason = outcome_at(version, self.settings.num_steps, self.journal.stop)
        return Finish(version, outcome, reason)

    def fail(self, reason: str, worker: str = "", *, is_state_lost: bool = False) -> None:
        """`worker`: whose log says more."""
        reason += self.last_words
        self.record(Ended(reason, is_failure=True, worker=worker, is_state_lost=is_state_lost))
        self.effects.append(Fail(reason, worker, is_state_lost))

    def clear(self, names: Iterable[str]) -> None:
        """These workers have moved: they do not hang."""
        moved = dict.fromkeys(names)
        if moved:
            self.standstill, self.moved_ms = "", self.now_ms
        if self.suspected:
            self.suspected = {m: why for m, why in self.suspected.items() if m.name not in moved}

    @property
    def slow(self) -> Mapping[str, float]:
        """Workers that are slow for sure: how many times longer they compute."""
        return self.journal.slow

    def judge_slow(self, worker: str, factor: float) -> None:
        """How many times longer it computes; 1: it is well. A successor goes on with it: it would
        leave the plan that was chosen for a slow worker, and find out once more.
        """
        factor = max(1.0, factor)
        if self.journal.ended is None and not self._is_same_speed(worker, factor):
            member = Member(worker, self.journal.started.get(worker, 0))
            before, last = self.slow.get(worker, 1.0), self.journal.last
            if factor == 1.0 and last is not None:
                self.costs.recovered(worker, before, self.journal.plans[last.number])
            self.record(SlowJudged(member, factor))

    def _is_same_speed(self, worker: str, factor: float) -> bool:
        known = self.slow.get(worker, 1.0)
        return factor == known or (min(factor, known) > 1 and abs(log(factor / known)) < SAME_SPEED)

    def available(self) -> dict[str, int]:
        """All workers that could have a seat in the next plan."""
        found: dict[str, int] = {}
        for member, state in self.roster.states.items():
            newest = self.journal.started.get(member.name, member.incarnation)
            fits = state.said_hello and member.incarnation >= newest
            if fits and not self.journal.is_fenced(member) and self.roster.is_reachable(member):
                found[member.name] = member.incarnation
        return found

    def is_lost_for_good(self, name: str) -> bool:
        """No worker of that name can be started in the time that others would wait for it."""
        node = self.roster.nodes.get(node_of(name))
        if node is None or node.is_lost(self.now_ms, self.settings.lost_after_ms):
            return True
        return self.can_never_return(name)

    def can_never_return(self, name: str) -> bool:
        """Its node is dead for good, or does not start it any more."""
        node = self.roster.nodes.get(node_of(name))
        if node is None or node.is_dead:
            return node is not None and not node.will_return
        if not node.is_connected or name in self.roster.starting or name in self._alive(node.name):
            return False
        return name not in node.places or not self.may_start(name)

    def _alive(self, node: str) -> list[str]:
        members = self.roster.on_node(node)
        return [member.name for member in members if not self.journal.is_fenced(member)]

    def may_start(self, name: str) -> bool:
        since_ms = self.now_ms - self.settings.restart_window_ms
        return self.roster.starts_within(name, since_ms) <= self.settings.max_restarts

    def lost_nodes(self) -> list[str]:
        if not self.roster.away:
            return []
        after_ms = self.settings.lost_after_ms
        if self.status.broken:
            # Its peers have lost it, too: the connection alone is not the trouble.
            after_ms = min(after_ms, self.settings.settle_ms)
        nodes = [self.roster.nodes[name] for name in self.roster.away]
        return [node.name for node in nodes if node.is_lost(self.now_ms, after_ms)]
