"""A node: its agent, its workers, the snapshots in its memory; and its connection to the
coordinator, which comes and goes.
"""

from typing import TYPE_CHECKING, Any

from holdfast.control.effects import Kill, Send, Start
from holdfast.control.facts import (
    Fact,
    NodeConnected,
    SnapshotKept,
    WorkerExited,
    WorkerTold,
)
from holdfast.control.report import Member
from holdfast.control.state import Kept, WorkerState
from holdfast.sim.fuzz.layout import Element
from holdfast.sim.fuzz.network import SimulatedConnection
from holdfast.sim.fuzz.worker import Worker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

Content = dict[Element, int]


class SimulatedAgent:
    def __init__(self, world: "World", node: str, places: tuple[str, ...]) -> None:
        self.world = world
        self.node = node
        self.places = places
        self.is_alive = True
        self.is_cut_off = False
        self.life = 1
        self.workers: dict[str, Worker] = {}
        self.states: dict[Member, WorkerState] = {}
        self.kept: list[tuple[Kept, Content]] = []
        self.connection: SimulatedConnection | None = None
        self._started: dict[str, int] = {}
        self.connect()

    # The coordinator

    def connect(self) -> None:
        """Tries until it works."""
        self._connect(self.life)

    def _connect(self, life: int) -> None:
        if not self.is_alive or life != self.life:
            return
        if self.connection is not None and self.connection.is_open:
            return
        if self.is_cut_off or not self.world.office.is_up:
            self.world.clock.after(self.world.rng.randint(10, 40), self._connect, life)
            return
        link = SimulatedConnection(self.world.clock, self.world.rng, self.world.pace.network_ms)
        self.connection = link
        hello = NodeConnected(
            node=self.node,
            agent=f"{self.node}/{self.life}",
            places=self.places,
            workers=tuple(self.states.values()),
            kept=tuple(kept for kept, _ in self.kept),
        )
        self.world.office.expect(self.node, link)
        self._tell(hello)

    def disconnect(self) -> None:
        if self.connection is not None and self.connection.is_open:
            self.connection.close()
            self.world.office.lost(self.node, self.connection)
        self.connection = None
        self.world.clock.after(self.world.rng.randint(5, 30), self._connect, self.life)

    def _tell(self, fact: Fact) -> None:
        if self.connection is not None:
            link = self.connection
            link.send(1, lambda f: self.world.office.hear(self.node, link, f), fact)

    def told(self, effect: Any) -> None:
        """From the coordinator."""
        if not self.is_alive:
            return
        match effect:
            case Send(member=member, message=message):
                worker = self.workers.get(member.name)
                if worker is not None and worker.member == member:
                    worker.later(self.world.rng.randint(0, 2), worker.receive, message)
            case Kill(member=member):
                worker = self.workers.get(member.name)
                if worker is not None and worker.member == member:
                    self.world.kill(worker, "killed")
            case Start(member=member):
                self._start(member)

    # Workers

    def _start(self, member: Member) -> None:
        if self._started.get(member.name, 0) >= member.incarnation:
            return
        self._started[member.name] = member.incarnation
        old = self.workers.get(member.name)
        if old is not None and old.is_alive:
            self.world.kill(old, "replaced")
        worker = Worker(self.world, member)
        self.workers[member.name] = worker
        self.world.workers[member] = worker
        self.states[member] = WorkerState(member=member)
        worker.later(self.world.rng.randint(5, 40), worker.tell)

    def heard(self, state: WorkerState) -> None:
        if self.is_alive and state.member in self.states:
            self.states[state.member] = state
            self._tell(WorkerTold(state))

    def saw_exit(self, worker: Worker, how: str) -> None:
        if self.is_alive and self.states.pop(worker.member, None) is not None:
            self._tell(WorkerExited(worker.member, how))

    def keep(self, kept: Kept, content: Content, life: int) -> None:
        if self.is_alive and life == self.life:
            self.kept.append((kept, content))
            self._tell(SnapshotKept(self.node, tuple(kept for kept, _ in self.kept)))

    # The node

    def crash(self) -> None:
        self.is_alive = False
        for worker in list(self.workers.values()):
            if worker.is_alive:
                self.world.kill(worker, "its node died")
        self.workers, self.states, self.kept, self._started = {}, {}, [], {}
        if self.connection is not None and self.connection.is_open:
            self.connection.close()
            self.world.office.lost(self.node, self.connection)
        self.connection = None

    def boot(self) -> None:
        if not self.is_alive:
            self.is_alive = True
            self.life += 1
            self.connect()
