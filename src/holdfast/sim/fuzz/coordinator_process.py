"""The coordinator as a process: it crashes between any two effects and comes back with nothing but
its journal. Time passes for it as in a job: it is woken when it says that it has to look again.
"""

from typing import TYPE_CHECKING

import msgspec

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import (
    AskPlanner,
    Disconnect,
    Effect,
    Explain,
    Fail,
    Finish,
    Happened,
    Kill,
    Record,
    Send,
    Start,
    ToAllNodes,
    ToNode,
)
from holdfast.control.facts import (
    Beat,
    CheckpointsFound,
    Fact,
    NodeConnected,
    NodeDead,
    NodeLost,
    StepReported,
    Tick,
    WorkerTold,
)
from holdfast.control.job_events import EpochEntered, JobEvent, Recorded, StepCompleted
from holdfast.control.journal_entries import JournalEntry
from holdfast.control.settings import ControlSettings
from holdfast.control.snapshots.messages import NodeHolds, Persisted, Unloadable
from holdfast.plan.workers import node_of
from holdfast.sim.fuzz.memory import KnownMemory
from holdfast.sim.fuzz.network import SimulatedConnection
from holdfast.sim.fuzz.replaced import ReplacedCoordinator

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

QUIET = (Tick, Beat, WorkerTold, NodeHolds)
"""Facts that are too many for the trace."""


class CoordinatorProcess:
    def __init__(self, world: "World", settings: ControlSettings) -> None:
        self.world = world
        self.settings = settings
        self.journal: list[JournalEntry] = []
        self.is_up = False
        self.crash_after = -1
        """Effects until the next crash; -1: none is planned."""
        self.successor_ms = 0
        """Not 0: the next entry cannot be written, and so long until the successor is there."""
        self.failed = ""
        self.is_finished = False
        self.machine: Coordinator | None = None
        self.recorded = Recorded(next_step=settings.first_step)
        """How far the run log goes."""
        self.told_steps: dict[tuple[int, int], None] = {}
        """Step and epoch of what was reported to the coordinator of the moment."""
        self.known = KnownMemory(world.memories)
        self._agents: dict[str, str] = {}
        """By node: the last that the coordinator of the moment has heard of."""
        self._links: dict[str, SimulatedConnection] = {}
        self._replaced: list[ReplacedCoordinator] = []
        self._unread: list[Fact] | None = None
        """What has come since it was stopped by a signal; None: it runs."""
        self.life = 0
        """Which coordinator this is: counts up with every one."""
        self._deadline_ms = self._wakes_ms = 0
        """When it has to look again, and when it is woken next, by its own clock."""

    @property
    def is_over(self) -> bool:
        return self.is_finished or bool(self.failed)

    def open(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self._unread = None
        self.life += 1
        self.machine = Coordinator(self.settings, list(self.journal), self.recorded)
        self.known = KnownMemory(self.world.memories)
        self.told_steps.clear()
        self._agents.clear()
        self.world.reopened(self.machine)
        self._deadline_ms = self._wakes_ms = self.world.clock.process_ms
        self._find_checkpoints()
        self._wake(self.life, self._wakes_ms)

    def crash(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self.crash_after = -1
        self.world.count("coordinator crashes")
        self.world.clock.note("coordinator crashes")
        links, self._links = self._links, {}
        for node, link in links.items():
            link.close()
            self.world.clock.after(
                self.world.rng.randint(1, 20), self.world.agents[node].disconnect
            )

    def pause(self, for_ms: int) -> None:
        """It is stopped by a signal: what comes meanwhile is read when it goes on."""
        if self.is_up and self._unread is None:
            self.world.count("coordinators paused")
            self.world.clock.note("coordinator is paused")
            self._unread = []
            self.world.clock.after(for_ms, self._resume, self.life)

    def _resume(self, life: int) -> None:
        if life != self.life or self._unread is None:
            return
        self.world.clock.note("coordinator goes on")
        unread, self._unread = self._unread, None
        for fact in unread:
            self.take(fact)

    def replace(self, keeps: dict[str, None]) -> None:
        """A successor begins while this one lives: agents of the nodes in `keeps` do not see it
        yet.
        """
        if not self.is_up or self.crash_after >= 0 or self.successor_ms:
            return
        assert self.machine is not None
        self.world.count("coordinators replaced")
        self.world.clock.note(f"coordinator is replaced, but for {', '.join(keeps) or 'none'}")
        links, self._links = self._links, {}
        kept = {node: link for node, link in links.items() if node in keeps and link.is_open}
        self._replaced.append(ReplacedCoordinator(self.world, self.machine, kept))
        self.is_up = False
        for node in links:
            if node not in kept:
                self.world.agents[node].disconnect()
        self.open()

    def end_replaced(self) -> None:
        """They look at the rendezvous, and see that they are."""
        replaced, self._replaced = self._replaced, []
        for one in replaced:
            one.end()

    def make_reliable(self) -> None:
        """Nothing goes wrong any more."""
        self.crash_after, self.successor_ms = -1, 0
        self.end_replaced()
        self._resume(self.life)

    def _wake(self, life: int, at_ms: int) -> None:
        """Unless it was to be woken earlier since, or by now has to look later only."""
        if not self.is_up or life != self.life or at_ms != self._wakes_ms:
            return
        if self._deadline_ms > at_ms:
            self._wake_at(self._deadline_ms)
        else:
            self._wakes_ms = -1
            self.take(Tick())

    def _wake_at(self, at_ms: int) -> None:
        self._wakes_ms = at_ms
        delay_ms = max(0, at_ms - self.world.clock.process_ms)
        self.world.clock.after(delay_ms, self._wake, self.life, at_ms)

    def expect(self, node: str, link: SimulatedConnection) -> None:
        old = self._links.get(node)
        if old is not None:
            old.close()
        self._links[node] = link

    def lost(self, node: str, link: SimulatedConnection) -> None:
        delay = self.world.rng.randint(1, 15)
        self.world.clock.after(delay, self._see_lost, node, link)

    def _see_lost(self, node: str, link: SimulatedConnection) -> None:
        if self.is_up and self._links.get(node) is link:
            del self._links[node]
            is_near = self.world.pace.is_one_machine
            left = self.world.agents[node].held() if is_near else ()
            self.take(NodeLost(node, "the connection is closed", left))

    def receive(self, node: str, link: SimulatedConnection, fact: Fact) -> None:
        if self.is_up and self._links.get(node) is link:
            if isinstance(fact, Persisted):
                self._find_checkpoints()
            self.take(fact)
        for one in self._replaced:
            one.receive(node, link, fact)

    def _find_checkpoints(self) -> None:
        if self.settings.snapshots.persists:
            versions = self.world.disk.versions
            self.take(CheckpointsFound({version: str(version) for version in versions}))

    def take(self, fact: Fact) -> None:
        if not self.is_up:
            return
        if self._unread is not None:
            self._unread.append(fact)
            return
        assert self.machine is not None
        if not isinstance(fact, QUIET):
            self.world.clock.note(f"fact {type(fact).__name__}")
        self._remember(fact)
        self._carry_out_all(self.machine.take(fact, self.world.clock.process_ms))
        if self.is_up:
            self._deadline_ms = self.machine.next_deadline_ms(self.world.clock.process_ms)
            if not 0 <= self._wakes_ms <= self._deadline_ms:
                self._wake_at(self._deadline_ms)

    def _carry_out_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self.crash_after == 0:
                self.crash()
                return
            self.crash_after -= self.crash_after > 0
            if self.successor_ms and isinstance(effect, Record):
                self._fail_to_write()
                return
            self._carry_out(effect)

    def _fail_to_write(self) -> None:
        """Nothing is sent that depends on an entry which is not durable: the process ends."""
        self.world.count("disk errors")
        self.world.clock.note("the journal cannot be written")
        self.world.clock.after(self.successor_ms, self.open)
        self.successor_ms = 0
        self.crash()

    def _log(self, event: JobEvent) -> None:
        """The run log is as durable as the journal."""
        match event:
            case StepCompleted(report=report):
                self.world.logged(report)
                step, epoch = report.step + 1, report.epoch
                changes = {"next_step": step, "step_epoch": epoch}
                self.recorded = msgspec.structs.replace(self.recorded, **changes)
            case EpochEntered(number=number):
                self.recorded = msgspec.structs.replace(self.recorded, epoch=number)

    def _remember(self, fact: Fact) -> None:
        """What the coordinator is told of steps and snapshots."""
        match fact:
            case StepReported(report=report):
                self.told_steps[report.step, report.epoch] = None
            case NodeConnected(node=node, arenas=arenas):
                self._agents[node] = fact.agent
                self.known.told(node, arenas, is_new=True)
            case NodeHolds(node=node, arenas=arenas):
                self.known.told(node, arenas)
            case NodeLost(node=node, left=left):
                self.known.told(node, left)
            case NodeDead(node=node) if self._agents.get(node, fact.agent) != fact.agent:
                self.world.count("deaths told late")
            case NodeDead(node=node, left=left):
                self.known.told(node, left)
            case CheckpointsFound(checkpoints=checkpoints):
                self.known.found_on_disk(checkpoints)
            case Unloadable(version=version):
                self.known.refused(version)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Record(entry=entry):
                self.journal.append(entry)
                self.world.recorded(entry)
            case Explain(text=text):
                self.world.clock.note(f"decided {text}")
            case Send(member=member, message=message):
                self.world.sent(message)
                self._send(member.name, effect)
            case Kill(member=member) | Start(member=member):
                self._send(member.name, effect)
            case ToNode(node=node):
                self._to_node(node, effect)
            case ToAllNodes():
                for node in list(self._links):
                    self._to_node(node, effect)
            case AskPlanner(question=question):
                self.world.planner.ask(question)
            case Disconnect(node=node):
                self._hang_up(node)
            case Happened(event=event):
                self._log(event)
            case Finish():
                self.is_finished = True
            case Fail(reason=reason):
                self.failed = reason

    def _hang_up(self, node: str) -> None:
        if node in self._links:
            self.world.agents[node].disconnect()

    def _send(self, name: str, effect: Effect) -> None:
        self._to_node(node_of(name), effect)

    def _to_node(self, node: str, effect: Effect) -> None:
        link = self._links.get(node)
        if link is not None:
            link.send(0, self.world.agents[node].told, effect)
