"""A node: its agent, its workers, the snapshots in its memory; and its connection to the
coordinator, which comes and goes.
"""

from typing import TYPE_CHECKING, Any

from holdfast.control.effects import Kill, NodeMessage, Send, Start, ToAllNodes, ToNode
from holdfast.control.facts import (
    Fact,
    NodeConnected,
    WorkerExited,
    WorkerTold,
)
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import Copied, Copy, DropArenas, NodeHolds
from holdfast.control.state import WorkerState
from holdfast.sim.fuzz.memory import NUM_VERSIONS, ArenaContent, ArenaKey
from holdfast.sim.fuzz.network import SimulatedConnection
from holdfast.sim.fuzz.worker import Worker
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World


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
        self.arenas: dict[ArenaKey, dict[Version, ArenaContent]] = {}
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
            arenas=self.held(),
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
            case ToNode(message=message) | ToAllNodes(message=message):
                self._follow(message)

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

    # Snapshots

    def held(self) -> tuple[HeldArena, ...]:
        return tuple(
            HeldArena(worker, plan, tuple(sorted(versions)))
            for (worker, plan), versions in self.arenas.items()
        )

    def keep(self, key: ArenaKey, version: Version, content: ArenaContent, life: int) -> None:
        """A version is whole in an arena; the oldest makes room for it."""
        if not self.is_alive or life != self.life:
            return
        arena = self.arenas.setdefault(key, {})
        arena[version] = content
        while len(arena) > NUM_VERSIONS:
            del arena[min(arena, key=lambda one: one.age)]
        self._tell(NodeHolds(node=self.node, arenas=self.held()))

    def report(self, fact: Fact) -> None:
        """What a worker says that is not its state."""
        if self.is_alive:
            self._tell(fact)

    def _follow(self, message: NodeMessage) -> None:
        match message:
            case DropArenas(version=version, plan=plan):
                self._drop(version, plan)
            case Copy(version=version, plan=plan):
                memory = self.world.memories[plan]
                for layout in memory.shares.copies:
                    if layout.node == self.node:
                        delay_ms = self.world.rng.randint(1, 40)
                        key = (layout.worker, plan)
                        self.world.clock.after(delay_ms, self._copy, key, version, self.life)

    def _drop(self, version: Version, plan: str) -> None:
        """Arenas of other plans, if all they hold is older."""
        old = [
            key
            for key, arena in self.arenas.items()
            if key[1] != plan and all(held.age < version.age for held in arena)
        ]
        for key in old:
            del self.arenas[key]
        if old:
            self._tell(NodeHolds(node=self.node, arenas=self.held()))

    def _copy(self, key: ArenaKey, version: Version, life: int) -> None:
        """What this node keeps for a worker of another one."""
        if not self.is_alive or life != self.life:
            return
        owner = self.world.agent_of(key[0])
        content = owner.arenas.get(key, {}).get(version) if owner.is_alive else None
        if content is None:
            self._tell(Copied(version=version, error=f"{key[0]} has it no more"))
            return
        elements = self.world.memories[key[1]].elements_of(self.node, key[0])
        own = {element: content.own[element] for element in elements.own}
        self.world.count("copies")
        self.keep(key, version, ArenaContent(own), life)

    # The node

    def crash(self) -> None:
        self.is_alive = False
        for worker in list(self.workers.values()):
            if worker.is_alive:
                self.world.kill(worker, "its node died")
        self.workers, self.states, self.arenas, self._started = {}, {}, {}, {}
        if self.connection is not None and self.connection.is_open:
            self.connection.close()
            self.world.office.lost(self.node, self.connection)
        self.connection = None

    def boot(self) -> None:
        if not self.is_alive:
            self.is_alive = True
            self.life += 1
            self.connect()
