"""The world: time, chance, processes and the network between them, and everything that is true
whatever process knows it. The control plane inside it is the one that runs real jobs.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import msgspec

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import WorkerMessage
from holdfast.control.facts import EpochReported, StepReported
from holdfast.control.journal_entries import JournalEntry, Ordered
from holdfast.control.journal_state import JournalState
from holdfast.control.order import Order, read_plan
from holdfast.control.report import Member, Outcome
from holdfast.control.settings import ControlSettings
from holdfast.control.snapshots.messages import Unloadable
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport, StepReport
from holdfast.plan.workers import node_of
from holdfast.sim.fuzz.agent import SimulatedAgent
from holdfast.sim.fuzz.clock import Clock
from holdfast.sim.fuzz.collectives import Collective
from holdfast.sim.fuzz.coordinator_process import CoordinatorProcess
from holdfast.sim.fuzz.disk import CheckpointDisk
from holdfast.sim.fuzz.layout import Element, SymbolicLayout, moves_between, symbolic_layout
from holdfast.sim.fuzz.memory import ArenaContent, ElementValues, PlanMemory, loadable
from holdfast.sim.fuzz.passed_messages import PassedMessages
from holdfast.sim.fuzz.planner import SimulatedPlanner
from holdfast.sim.fuzz.promises.promise import Checker, Violation
from holdfast.sim.fuzz.shapes import JobShape
from holdfast.sim.fuzz.values import Values
from holdfast.sim.fuzz.worker import Worker
from holdfast.snapshot.layout import Version
from holdfast.snapshot.share import plan_digest

STEP_S = 0.05
"""What workers say that a step takes; no promise is about it."""


class WorldDelays(msgspec.Struct, frozen=True):
    """The longest that things take, in milliseconds."""

    compute_ms: int = 4
    network_ms: int = 6
    apply_ms: int = 6
    feed_ms: int = 10
    snapshot_every: int = 1
    is_one_machine: bool = False
    """The memory of a node that is cut off can be read without its agent."""
    captures: bool = True
    """A unit that is fed is copied first, so that it need not arrive within a step."""


class World:
    def __init__(
        self,
        rng: Random,
        shape: JobShape,
        settings: ControlSettings,
        pace: WorldDelays,
        checkers: list[Checker],
        planner_seed: int = 0,
    ) -> None:
        self.rng, self.shape, self.settings, self.pace = rng, shape, settings, pace
        self.clock = Clock()
        self.values = Values()
        self.passed_messages = PassedMessages()
        self.coverage: Counter[str] = Counter()
        self.workers: dict[Member, Worker] = {}
        self.losses: dict[float, tuple[int, ...]] = {}
        self.orders: dict[int, Order] = {}
        self.cuts: dict[tuple[str, str], None] = {}
        self.is_calm = False
        self.stopped_ms: dict[Member, int] = {}
        """Since when workers are, or were last, stopped by a signal."""
        self.hung_ms: dict[Member, int] = {}
        """Since when workers hang, or last did, in the middle of an action."""
        self.busy: dict[Member, None] = {}
        """Those of them that use their processor."""
        self.faults_until_ms = 0
        self.disk = CheckpointDisk()
        self.journal = JournalState(settings.plan)
        """What the journal says, kept by the world itself."""
        self.listeners: list[Callable[[str, Worker], None]] = []
        self.checkers = checkers
        self._layouts: dict[int, SymbolicLayout] = {}
        self._collectives: dict[Any, Collective] = {}
        self._staged: dict[tuple[int, str], tuple[Worker, dict[Element, int]]] = {}
        self._moves: dict[tuple[int, int], dict[str, dict[str, list[Element]]]] = {}
        self.memories: dict[str, PlanMemory] = {}
        """By the digest of a plan."""
        self._memories: dict[int, PlanMemory] = {}
        self.planner = SimulatedPlanner(self, planner_seed)
        self.coordinator = CoordinatorProcess(self, settings)
        self.agents = {
            node: SimulatedAgent(self, node, places) for node, places in shape.places.items()
        }
        for checker in checkers:
            checker.watch(self)

    # Looking things up

    def agent_of(self, name: str) -> SimulatedAgent:
        return self.agents[node_of(name)]

    def layout(self, epoch: int) -> SymbolicLayout:
        return self._layouts[epoch]

    def collective(self, key: Any, members: tuple[str, ...]) -> Collective:
        if key not in self._collectives:
            self._collectives[key] = Collective(self, members)
        return self._collectives[key]

    def seated(self, name: str, order: Order | None) -> Worker | None:
        """The live process that an order means by a name."""
        worker = self.agent_of(name).workers.get(name)
        if worker is None or not worker.is_alive or order is None:
            return None
        return worker if worker.position.is_in(order) else None

    def members_alive(self, order: Order) -> list[Worker]:
        return [
            worker
            for member, worker in self.workers.items()
            if worker.is_alive and order.incarnations.get(member.name) == member.incarnation
        ]

    def newest_known(self) -> int | None:
        """The newest whole version that the coordinator was told of, as the world judges it."""
        return self.coordinator.known.newest(self.journal)

    def memory(self, epoch: int) -> PlanMemory:
        """The arenas under the plan of an epoch."""
        if epoch not in self._memories:
            plan = self.layout(epoch).plan
            digest = plan_digest(plan)
            if digest not in self.memories:
                self.memories[digest] = PlanMemory(plan)
            self._memories[epoch] = self.memories[digest]
        return self._memories[epoch]

    def is_member(self, worker: Worker) -> bool:
        """Of the last order, or already inside the outstanding one; and not fenced."""
        change = self.journal.outstanding
        inside = change is not None and worker.position.epoch == change.number
        order = change if inside else self.journal.last
        is_in = order is not None and worker.position.is_in(order)
        return is_in and not self.is_fenced(worker)

    def is_fenced(self, worker: Worker) -> bool:
        return worker.member in self.journal.fenced

    def unfenced(self) -> list[Worker]:
        return [w for w in self.workers.values() if w.is_alive and not self.is_fenced(w)]

    # Telling

    def prolong(self, until_ms: int) -> None:
        """Something that was begun needs that long to be found."""
        self.faults_until_ms = max(self.faults_until_ms, until_ms)

    def count(self, what: str, times: int = 1) -> None:
        self.coverage[what] += times

    def happened(self, kind: str, worker: Worker) -> None:
        for listener in self.listeners:
            listener(kind, worker)

    def require(self, promise: str, holds: bool, text: str) -> None:
        if not holds:
            raise Violation(promise, text)

    # The coordinator

    def recorded(self, entry: JournalEntry) -> None:
        if isinstance(entry, Ordered):
            self._learn(entry.order)
        for checker in self.checkers:
            checker.recording(self, entry)
        self.journal.note(entry)
        for checker in self.checkers:
            checker.recorded(self, entry)

    @property
    def is_through(self) -> bool:
        """Is the job done?"""
        return self.coordinator.is_finished

    def sent(self, message: WorkerMessage) -> None:
        for checker in self.checkers:
            checker.sending(self, message)
        if isinstance(message, Order):
            self._learn(message)

    def _learn(self, order: Order) -> None:
        """Orders as workers will see them; with a rule off one number may mean two."""
        known = self.orders.get(order.number)
        if known is not None and known.plan == order.plan:
            return
        self.orders[order.number] = order
        plan = read_plan(order.plan, {n: layout.plan for n, layout in self._layouts.items()})
        self._layouts[order.number] = symbolic_layout(plan)

    def reopened(self, coordinator: Coordinator) -> None:
        for checker in self.checkers:
            checker.reopened(self, coordinator)

    # Breaking

    def kill(self, worker: Worker, how: str) -> None:
        if not worker.is_alive:
            return
        worker.is_alive = False
        self.clock.note(f"{worker} dies: {how}")
        agent = self.agent_of(worker.name)
        self.clock.after(self.rng.randint(1, 12), agent.saw_exit, worker, how)
        epochs = {worker.position.epoch, worker.position.pending}
        for other in list(self.workers.values()):
            if other.is_alive and other.position.epoch in epochs and other.position.epoch:
                self._loses(other, worker.name, "connection closed by")

    def wake_others(self, worker: Worker, epoch: int) -> None:
        """A worker that stops wakes all its groups."""
        for other in list(self.workers.values()):
            is_there = epoch in (other.position.epoch, other.building)
            is_peer = other is not worker and other.is_alive and is_there
            if is_peer and not self.is_cut(worker.name, other.name):
                other.later(self.rng.randint(0, 15), other.lost, epoch, "", "woken")

    def _loses(self, worker: Worker, name: str, why: str) -> None:
        if not self.is_cut(worker.name, name):
            epoch = worker.position.epoch
            worker.later(self.rng.randint(1, 25), worker.lost, epoch, name, why)

    def is_cut(self, one: str, other: str) -> bool:
        return bool(self.cuts) and (min(one, other), max(one, other)) in self.cuts

    def cut(self, one: str, other: str) -> None:
        self.cuts[min(one, other), max(one, other)] = None

    def heal(self, one: str, other: str) -> None:
        self.cuts.pop((min(one, other), max(one, other)), None)

    def check_links(self, worker: Worker, operation: Collective, epoch: int) -> None:
        """A group with a cut between two of its members breaks on those two; so does one with a
        member that is dead.
        """
        for other in operation.members:
            if self.is_cut(worker.name, other):
                worker.later(self.rng.randint(1, 20), worker.lost, epoch, other, "no route to")
            elif other not in operation.entered and self._is_missing(other, epoch):
                worker.later(self.rng.randint(1, 20), worker.lost, epoch, other, "refused by")

    def _is_missing(self, name: str, epoch: int) -> bool:
        order = self.orders.get(epoch)
        if order is None or name not in order.incarnations:
            return True
        worker = self.workers.get(Member(name, order.incarnations[name]))
        if worker is None or not worker.is_alive:
            return True
        position = worker.position
        has_left = position.epoch > epoch or (position.is_frozen and position.round > epoch)
        return has_left or (position.epoch == epoch and worker.is_stopped)

    # State

    def logged(self, report: StepReport) -> None:
        """A step is written to the run log."""
        for checker in self.checkers:
            checker.logged(self, report)

    def entered(self, worker: Worker, order: Order) -> None:
        self.happened("restored" if order.kind == "restore" else "entered", worker)
        for checker in self.checkers:
            checker.entered(self, worker, order)
        if order.kind != "start" and (worker.position.has_seat or order.kind == "change"):
            report = epoch_report(order, worker.position.version)
            self.agent_of(worker.name).report(EpochReported(worker.member, report))

    def agreed(self, outcome: Outcome, losses: tuple[int, ...]) -> None:
        self.losses[outcome.loss] = losses

    def apply(self, worker: Worker, base: int, outcome: Outcome) -> None:
        """The update of a step on all that a worker holds."""
        layout = self.layout(base)
        slots = layout.slots_of[worker.name]
        for checker in self.checkers:
            checker.applying(self, worker, layout, outcome)
        if outcome.applied:
            for slot in slots:
                result = worker.results[slot]
                for element in layout.elements[slot]:
                    history = worker.state.get(element, -1)
                    if history < 0:
                        raise Violation("P2", f"{worker} updates {element} without having it")
                    worker.state[element] = self.values.updated(history, result, outcome)
        worker.last_results = {
            element: worker.results[slot] for slot in slots for element in layout.elements[slot]
        }
        for checker in self.checkers:
            checker.applied(self, worker, outcome)
        self.agent_of(worker.name).report(StepReported(worker.member, _step_report(outcome)))

    def result_for(self, worker: Worker, element: Element) -> int:
        return worker.last_results[element]

    def stage(self, worker: Worker, number: int) -> None:
        """What others fetch from it at a switch."""
        self._staged[number, worker.name] = (worker, dict(worker.state))

    def moved_state(self, worker: Worker, number: int) -> dict[Element, int] | None:
        """Its state under the next plan; None: something has not arrived yet."""
        old, new = self.layout(worker.position.epoch), self.layout(number)
        key = (worker.position.epoch, number)
        if key not in self._moves:
            self._moves[key] = moves_between(old, new)
        state = dict(worker.state)
        for source, elements in self._moves[key].get(worker.name, {}).items():
            staged = self._staged.get((number, source))
            if staged is None or not staged[0].is_alive:
                return None
            state.update((element, staged[1][element]) for element in elements)
            self.count("moves")
        return {element: state[element] for element in new.held.get(worker.name, ())}

    def save_snapshot(self, worker: Worker, outcome: Outcome) -> None:
        """The worker's part of the snapshot, some time later in its agent's memory."""
        version = outcome.step + 1
        if version % self.pace.snapshot_every:
            return
        memory, agent = self.memory(outcome.epoch), self.agent_of(worker.name)
        content = memory.elements_of(agent.node, worker.name).content(worker.state)
        key = (worker.name, memory.digest)
        kept = Version(version, outcome.epoch)
        worker.later(self.rng.randint(1, 60), agent.keep, key, kept, content, agent.life)

    def load(self, worker: Worker, order: Order) -> dict[Element, int] | None:
        """What a worker holds under an order, from snapshots in live memory under one plan."""
        version = Version(order.version, order.agreed_in)
        needed = self.layout(order.number).held[worker.name]
        found = self.readable(version, needed) or self.disk.read(version)
        if any(element not in found for element in needed):
            reason = f"{worker.name} cannot load {version}"
            self.agent_of(worker.name).report(Unloadable(version=version, reason=reason))
            return None
        loaded = {element: found[element] for element in needed}
        for checker in self.checkers:
            checker.loaded(self, worker, order, loaded)
        return loaded

    def readable(
        self, version: Version, needed: Iterable[Element] | None = None
    ) -> ElementValues | None:
        """A version as it is in live memory under some plan; None: not all of what is needed."""
        for digest, memory in self.memories.items():
            found = loadable(self._contents(version, digest))
            if all(element in found for element in (needed or memory.elements)):
                return found
        return None

    def _contents(self, version: Version, plan: str) -> list[ArenaContent]:
        agents = self.agents.values()
        return [content for agent in agents for content in agent.read(version, plan)]


def _step_report(outcome: Outcome) -> StepReport:
    return StepReport(
        step=outcome.step,
        epoch=outcome.epoch,
        seconds=STEP_S * (1 + outcome.epoch % 3),  # plans are of different use
        loss=outcome.loss,
        norm=outcome.norm,
        num_tokens=outcome.num_tokens,
        learning_rate=outcome.rate_factor,
        applied=outcome.applied,
    )


def epoch_report(order: Order, version: int) -> ChangeReport | RecoveryReport | RestoreReport:
    """What a worker reports when it has entered an order."""
    if order.kind == "change":
        return ChangeReport(version, order.number, 0.0, 0, 0, 0)
    if order.kind == "restore":
        return RestoreReport(version, order.number, 0.0, 0.0, {})
    return RecoveryReport(version, order.number, 0.0, 0, False)
