"""What a coordinator knows, for those who only look: status, the run log, faults on purpose."""

from collections.abc import Mapping

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.facts import ProgressPlace
from holdfast.control.hang_monitor import HangMonitor
from holdfast.control.journal_state import members_of
from holdfast.control.order import Order
from holdfast.control.state import WorkerState
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.snapshot.protects import JobProtection


class CoordinatorView:
    """Always up to date; nothing can be changed through it."""

    def __init__(self, state: CoordinatorState, hangs: HangMonitor) -> None:
        self._state, self._hangs = state, hangs

    @property
    def term(self) -> int:
        """How many coordinators the job has had."""
        return self._state.journal.term

    @property
    def run(self) -> int:
        """How often the job was started; before the first fact, that of coordinators before."""
        return self._state.journal.run

    @property
    def last(self) -> Order | None:
        """The order in force."""
        return self._state.journal.last

    @property
    def epoch(self) -> int:
        last = self._state.journal.last
        return last.number if last is not None else 0

    @property
    def change(self) -> int:
        """The planned change that is under way; 0 = none."""
        change = self._state.journal.outstanding
        return change.number if change is not None else 0

    @property
    def plan(self) -> Plan:
        """In force, or what the job begins with."""
        journal = self._state.journal
        return journal.plans[journal.last.number] if journal.last is not None else journal.wanted

    @property
    def plans(self) -> Mapping[int, Plan]:
        """By epoch."""
        return self._state.journal.plans

    @property
    def wanted(self) -> Plan:
        return self._state.journal.wanted

    @property
    def is_stopping(self) -> bool:
        return self._state.journal.stop is not None

    @property
    def next_step(self) -> int:
        """The first that not all have reported: so many are done."""
        return self._state.steps.next_step

    @property
    def workers(self) -> dict[str, WorkerState]:
        """By name, the newest process of each."""
        states = self._state.roster.states
        return {member.name: states[member] for member in sorted(states)}

    @property
    def finishing(self) -> list[str]:
        """At the end: members of the last order that have not left. Others have nothing to say."""
        last, states = self._state.journal.last, self._state.roster.states
        members = members_of(last) if last is not None else []
        return [member.name for member in members if member in states]

    @property
    def slow(self) -> Mapping[str, float]:
        """Workers that are slow for sure: how many times longer they compute."""
        return self._state.slow

    @property
    def profile(self) -> Profile:
        """What things take, as measured in the last steps."""
        return self._state.profile

    @property
    def pids(self) -> Mapping[str, int]:
        return self._state.roster.pids

    @property
    def places(self) -> Mapping[str, ProgressPlace]:
        return self._hangs.places

    @property
    def protection(self) -> JobProtection | None:
        """What the job survives the loss of, as it was told last; None: it was not yet."""
        return self._state.protection.told

    @property
    def nodes(self) -> list[str]:
        """Connected."""
        return self._state.roster.connected()

    @property
    def present_nodes(self) -> list[str]:
        """Connected, or lost so recently that they may come back."""
        state, after_ms = self._state, self._state.settings.lost_after_ms
        nodes = state.roster.nodes
        return [name for name, node in nodes.items() if not node.is_lost(state.now_ms, after_ms)]
