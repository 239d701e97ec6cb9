"""What the parts of the coordinator share: what is known, and the effects that are piling up."""

from collections.abc import Iterable, Sequence

from holdfast.control.effects import Effect, Explain, Fail, Finish, Happened, Record
from holdfast.control.ending import outcome_at
from holdfast.control.job_events import JobEvent
from holdfast.control.journal_entries import Ended, JournalEntry, Started
from holdfast.control.journal_state import JournalState
from holdfast.control.member_status import MemberStatus
from holdfast.control.order import Share
from holdfast.control.report import Member
from holdfast.control.roster import Roster
from holdfast.control.rounds import Round
from holdfast.control.settings import ControlSettings
from holdfast.control.snapshots.coordination import SnapshotCoordination
from holdfast.control.step_aggregator import Recorded, StepAggregator
from holdfast.plan.workers import node_of


class CoordinatorState:
    def __init__(self, settings: ControlSettings) -> None:
        self.settings = settings
        self.journal = JournalState(settings.plan)
        self.roster = Roster()
        self.status = MemberStatus(self.journal, self.roster)
        self.steps = StepAggregator(settings.first_step)
        self.snapshots = SnapshotCoordination(settings.snapshots, self.journal, self.roster)
        self.round: Round | None = None
        self.shares: dict[str, Share] = {}
        """Of the last order, if it was decided in this term."""
        self.gone: dict[Member, str] = {}
        """Deaths that were seen and not judged yet."""
        self.suspected: dict[Member, str] = {}
        """Workers that hang, until they move or tell something."""
        self.stopped: tuple[str, ...] = ()
        """Workers that are stopped by a signal now."""
        self.last_words = ""
        """Of the last worker that said why it ended, to be said with a failure."""
        self.spared: dict[Member, str] = {}
        """Suspects that hold what no other worker holds."""
        self.entering_ms: int | None = None
        """Since when some members of an order are not in it, and it is due."""
        self.vain_rounds = 0
        """Held because an order was not entered in time, one after the other."""
        self.end: Finish | None = None
        """To be said once the last checkpoint is written."""
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
        """The job is over with this version."""
        self.record(Ended("done", version=version))
        self.decided(f"done at version {version}" + (f": {reason}" if reason else ""))
        self.end = self.end_of(version)

    def end_of(self, version: int) -> Finish:
        outcome, reason = outcome_at(version, self.settings.num_steps, self.journal.stop)
        return Finish(version, outcome, reason)

    def fail(self, reason: str, worker: str = "") -> None:
        """`worker`: whose log says more."""
        reason += self.last_words
        self.record(Ended(reason, is_failure=True))
        self.effects.append(Fail(reason, worker))

    def clear(self, names: Iterable[str]) -> None:
        """These workers have moved: they do not hang."""
        if self.suspected:
            moved = dict.fromkeys(names)
            self.suspected = {m: why for m, why in self.suspected.items() if m.name not in moved}

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
        after_ms = self.settings.lost_after_ms
        if self.status.broken:
            # Its peers have lost it, too: the connection alone is not the trouble.
            after_ms = min(after_ms, self.settings.settle_ms)
        nodes = [self.roster.nodes[name] for name in self.roster.away]
        return [node.name for node in nodes if node.is_lost(self.now_ms, after_ms)]
