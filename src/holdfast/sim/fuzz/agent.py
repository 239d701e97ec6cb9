"""A node: its agent, its workers, the snapshots in its memory; and its connection to the
coordinator, which comes and goes.
"""

from typing import TYPE_CHECKING, Any

from holdfast.control.effects import (
    Kill,
    NodeMessage,
    Send,
    Start,
    StepsRecorded,
    ToAllNodes,
    ToNode,
)
from holdfast.control.facts import (
    Beat,
    EpochReported,
    Fact,
    NodeConnected,
    StepReported,
    WorkerExited,
    WorkerStarted,
    WorkerTold,
)
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import (
    Copied,
    Copy,
    DropArenas,
    NodeHolds,
    Persist,
    Persisted,
)
from holdfast.control.state import WorkerState
from holdfast.sim.fuzz.beats import ProgressPages
from holdfast.sim.fuzz.memory import NUM_VERSIONS, ArenaContent, ArenaKey, ElementValues
from holdfast.sim.fuzz.network import SimulatedConnection
from holdfast.sim.fuzz.worker import Worker
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

BEAT_MS = 80
PERSISTED = 0.3
"""Of the versions that are offered for a checkpoint."""
LOOK_MS = 5
"""How long it takes, at most, until an agent sees what a worker has saved."""


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
        self.damaged: dict[Version, None] = {}
        """Versions that turn out to be unreadable here when they are loaded."""
        self.tell_late_ms = 0
        """How long it takes until the coordinator is told what is held."""
        self._tells_held = False
        """It will be told in a moment."""
        self.unrecorded: list[StepReported | EpochReported] = []
        """What workers have reported and the run log may not have."""
        self._recorded = 0
        """As the coordinator of the moment said before the last time."""
        self.connection: SimulatedConnection | None = None
        self._started: dict[str, int] = {}
        self._pages = ProgressPages(world)
        self.connect()
        self._beat()

    @property
    def agent(self) -> str:
        """Differs for every agent process."""
        return f"{self.node}/{self.life}"

    # The coordinator

    def connect(self) -> None:
        """Tries until it works."""
        self._connect(self.life)

    def _connect(self, life: int) -> None:
        if not self.is_alive or life != self.life:
            return
        if self.connection is not None and self.connection.is_open:
            return
        if self.is_cut_off or not self.world.coordinator.is_up:
            self.world.clock.after(self.world.rng.randint(10, 40), self._connect, life)
            return
        link = SimulatedConnection(self.world.clock, self.world.rng, self.world.pace.network_ms)
        self.connection, self._recorded = link, 0
        self._pages.forget()
        hello = NodeConnected(
            node=self.node,
            agent=self.agent,
            places=self.places,
            workers=tuple(self.states.values()),
            arenas=self.held(),
        )
        self.world.coordinator.expect(self.node, link)
        self._tell(hello)
        for fact in self.unrecorded:
            self._tell(fact)

    def disconnect(self) -> None:
        if self.connection is not None and self.connection.is_open:
            self.connection.close()
            self.world.coordinator.lost(self.node, self.connection)
        self.connection = None
        self.world.clock.after(self.world.rng.randint(5, 30), self._connect, self.life)

    def _tell(self, fact: Fact) -> None:
        if self.connection is not None:
            link = self.connection
            link.send(1, lambda f: self.world.coordinator.receive(self.node, link, f), fact)

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
        # The fork server's notice may come after the worker's first word.
        self.world.clock.after(self.world.rng.randint(0, 60), self._forked, member)

    def _forked(self, member: Member) -> None:
        if self.is_alive and member in self.states:
            self._tell(WorkerStarted(member=member, pid=1))

    def receive_state(self, state: WorkerState) -> None:
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
        self._tell_held_later(self.tell_late_ms or self.world.rng.randint(0, LOOK_MS))

    def _tell_held_later(self, delay_ms: int) -> None:
        """Like an agent that looks at its arenas now and then, it tells of several at once."""
        if not self._tells_held:
            self._tells_held = True
            self.world.clock.after(delay_ms, self._tell_held, self.life)

    def _tell_held(self, life: int) -> None:
        if self.is_alive and life == self.life:
            self._tells_held = False
            self._tell(NodeHolds(node=self.node, arenas=self.held()))

    def lose(self, versions: list[Version], delay_ms: int) -> None:
        """They are gone, and the coordinator is told some time later."""
        for arena in self.arenas.values():
            for version in versions:
                arena.pop(version, None)
        self._tell_held_later(delay_ms)

    def read(self, version: Version, plan: str) -> list[ArenaContent]:
        """What can be read of a version; what is damaged is given up."""
        if not self.is_alive:
            return []
        if version in self.damaged:
            del self.damaged[version]
            self.world.count("damaged snapshots found")
            self.lose([version], 0)
        arenas = [arena for (_, digest), arena in self.arenas.items() if digest == plan]
        return [arena[version] for arena in arenas if version in arena]

    def report(self, fact: Fact) -> None:
        """What a worker says that is not its state."""
        if self.is_alive:
            self._tell(fact)
        if isinstance(fact, StepReported | EpochReported):
            self.unrecorded.append(fact)

    def _follow(self, message: NodeMessage) -> None:
        match message:
            case StepsRecorded(step=step):
                kept = [fact for fact in self.unrecorded if fact.report.step >= self._recorded]
                self.unrecorded, self._recorded = kept, step
            case Persist():
                self._persist(message)
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
            self._tell_held_later(0)

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

    def _persist(self, message: Persist) -> None:
        """If it is due or demanded: what is whole now is held, and written in a moment."""
        world = self.world
        if not message.demand and world.rng.random() > PERSISTED:
            return
        values = world.readable(message.version)
        reason = message.demand or "it is due"
        delay_ms = world.rng.randint(5, 100)
        world.clock.after(delay_ms, self._write, message.version, values, reason, self.life)

    def _write(
        self, version: Version, values: ElementValues | None, reason: str, life: int
    ) -> None:
        if not self.is_alive or life != self.life:
            return
        error = "overwritten before it was held"
        if values is not None:
            error = self.world.disk.write(version, values)
        self.world.count("checkpoints failed" if error else "checkpoints written")
        told = Persisted(
            version=version, reason=reason, seconds=0.0, path=str(version), error=error
        )
        self._tell(told)

    def _beat(self) -> None:
        self.world.clock.after(BEAT_MS, self._beat)
        if self.is_alive:
            places = self._pages.changed(self.workers)
            self._tell(Beat(node=self.node, sent_ms=self.world.clock.process_ms, places=places))

    # The node

    def crash(self) -> None:
        self.is_alive = False
        for worker in list(self.workers.values()):
            if worker.is_alive:
                self.world.kill(worker, "its node died")
        self.workers, self.states, self.arenas, self._started = {}, {}, {}, {}
        self.damaged, self.tell_late_ms = {}, 0
        self.unrecorded = []
        if self.connection is not None and self.connection.is_open:
            self.connection.close()
            self.world.coordinator.lost(self.node, self.connection)
        self.connection = None

    def boot(self) -> None:
        if not self.is_alive:
            self.is_alive, self._tells_held = True, False
            self.life += 1
            self.connect()
