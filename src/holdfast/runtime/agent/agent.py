"""The agent: one process per node. It starts workers, sees them end, and speaks for them.

It decides nothing. Orders of the coordinator are passed on to the workers, what they say is passed
up, and the last full state of each is kept, so that a coordinator that is new or was cut off knows
everything with the first message of a connection. While there is no coordinator, the workers do not
notice: their messages wait here. The agent looks for it for ever, and believes only one whose term
is not lower than any it has seen. Where hosts join the job, it may have to start one itself
(`succeeding`).

When the agent ends, the fork server kills the node's workers. The agent ends with the launcher.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.control.effects import StepsRecorded
from holdfast.control.facts import Beat, NodeConnected, ProgressPlace, WorkerExited, WorkerStarted
from holdfast.control.message import Message
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import (
    Copy,
    DropArenas,
    Persist,
    PlaceCopies,
    SnapshotEvery,
)
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import StepReport
from holdfast.runtime.agent.finding import CoordinatorFinder, FixedCoordinator
from holdfast.runtime.agent.peer_service import PeerService
from holdfast.runtime.agent.snapshots import AgentSnapshots
from holdfast.runtime.agent.workers import WorkerProcess, read_process
from holdfast.runtime.coordinator.order_deltas import OrderUnpacker
from holdfast.runtime.faults.host_network import HostTrouble
from holdfast.runtime.faults.kinds import SIGNALS, Fault
from holdfast.runtime.launch.exit_status import describe_exit
from holdfast.runtime.launch.fork_server import Exited, Forked, Forker, ForkServerGone
from holdfast.runtime.wire.connection import ClientConnection, open_connection
from holdfast.runtime.wire.frames import BY_AGENT
from holdfast.runtime.wire.host_messages import Peer, Peers, Serving, TermInDoubt
from holdfast.runtime.wire.messages import (
    Assignment,
    EndNode,
    Failed,
    FaultMessage,
    FromWorker,
    Hello,
    InjectFault,
    KillWorker,
    OrderForNode,
    ProbeDone,
    Relayed,
    StartWorker,
    ToAgent,
    ToMember,
)
from holdfast.runtime.wire.secret import ClientProof, ProofFailed
from holdfast.runtime.wire.snapshot_messages import ArenaWanted, LightGiven, Sealed
from holdfast.runtime.wire.tls import TlsFiles, client_tls, files_of
from holdfast.runtime.worker.progress_page import now_ms

_LOG = logging.getLogger(__name__)

FIRST_WAIT_S, LAST_WAIT_S = 0.02, 0.5
KEPT_MESSAGES = 256
"""Per node, besides steps: told again on every connect, as the last coordinator may have died
before it wrote them down.
"""


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, tag="agent"):
    """Everything an agent needs to know."""

    node: str
    agent: str
    """Differs for every agent process."""
    places: tuple[str, ...]
    host: str
    port: int
    """Of the coordinator."""
    secret: str
    tls: TlsFiles = TlsFiles()
    heartbeat_ms: int
    log_dir: str
    assignment: Assignment
    """Of any of its workers, but for the name."""
    serves: str = ""
    """The address for workers of other hosts; empty: all are on this machine."""


class Agent:
    def __init__(
        self, spec: AgentSpec, forker: Forker, finder: CoordinatorFinder | None = None
    ) -> None:
        self._spec, self._forker = spec, forker
        self._finder: CoordinatorFinder = finder or FixedCoordinator(spec.host, spec.port)
        job = spec.assignment.config.job
        self._serving: Serving | None = None
        self.is_memory_useless = False
        """To any run after this one."""
        self._is_job_over = False
        self._workers: dict[str, WorkerProcess] = {}
        self._ending: dict[str, WorkerProcess] = {}
        """Told to have ended: they run no more code, but the kernel has not given back all."""
        self._waiting: dict[str, Member] = {}
        """To be started when the process that has the name is reaped."""
        self._highest: dict[str, int] = {}
        """The last incarnation of each name that was started here."""
        self._connection: ClientConnection | None = None
        self._lost = asyncio.Event()
        self._ended = asyncio.Event()
        self._orders = OrderUnpacker()
        self._steps: list[Relayed] = []
        self._recorded = 0
        """By the coordinator of the moment, as it said before the last time: one that is being
        replaced may record a step after its successor has read what is recorded.
        """
        self._others: list[Relayed] = []
        self._places: dict[str, ProgressPlace] = {}
        self._away_until = 0.0
        self._troubles: list[HostTrouble] = []
        self._peers: dict[str, Peer] = {}
        self._snapshots = AgentSnapshots(
            spec.node,
            spec.assignment,
            forker,
            Path(spec.log_dir),
            self._tell,
            spec.secret if spec.serves else "",
        )
        self._service: PeerService | None = None
        if spec.serves:
            self._service = PeerService(
                spec.secret,
                self._snapshots.memory,
                files_of(job),
                self._finder.reach,
            )

    async def run(self, launcher: socket.socket) -> None:
        """Until the job is over or the launcher gone."""
        loop = asyncio.get_running_loop()
        launcher.setblocking(False)
        loop.add_reader(launcher, self._ended.set)  # it says nothing more: this is its end
        loop.add_reader(self._forker, self._receive_fork_notice)
        if self._service is not None:
            peer = await self._service.start(self._spec.serves)
            self._serving = Serving(node=self._spec.node, agent=self._spec.agent, peer=peer)
        self._finder.start(self._hang_up, self._end_with_job)
        tasks = [asyncio.create_task(job) for job in (self._keep_connected(), self._beat())]
        await self._ended.wait()
        for task in tasks:
            task.cancel()
        for trouble in self._troubles:
            await trouble.end()
        await self._finder.close(is_job_over=self._is_job_over)
        self._snapshots.close()
        if self._service is not None:
            self._service.close()
        for worker in (*self._workers.values(), *self._ending.values()):
            worker.give_back()
        if self._connection is not None:
            self._connection.close()
            await asyncio.sleep(0)

    # The coordinator.

    async def _keep_connected(self) -> None:
        loop, wait_s = asyncio.get_running_loop(), FIRST_WAIT_S
        while True:
            if await self._connect():
                began_s = loop.time()
                await self._lost.wait()
                if loop.time() - began_s > LAST_WAIT_S:  # it was not sent away at once
                    wait_s = FIRST_WAIT_S
            self._finder.lost()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LAST_WAIT_S)

    async def _connect(self) -> bool:
        spec = self._spec
        if asyncio.get_running_loop().time() < self._away_until:
            return False
        self._lost.clear()
        found = self._finder.address()
        if found is None:
            return False
        host, port = found
        try:
            async with asyncio.timeout(self._finder.connect_s):
                connection, term = await open_connection(
                    host,
                    port,
                    ClientProof(spec.secret, "agent", spec.node),
                    BY_AGENT,
                    tls=client_tls(spec.tls),
                    on_message=self._apply,
                    on_lost=self._cut_off,
                    unheard_ms=self._finder.unheard_ms,
                )
        except (OSError, ProofFailed, TimeoutError) as error:
            _LOG.info("no coordinator at %s:%d: %s", host, port, str(error) or "no answer")
            return False
        if not self._finder.connected(term):
            seen = self._finder.reach().term
            _LOG.warning("refused a coordinator of term %d: %d was seen", term, seen)
            connection.hang_up()
            return False
        self._connection, self._orders, self._recorded = connection, OrderUnpacker(), 0
        _LOG.info("connected to the coordinator of term %d", term)
        for message in self._everything():
            connection.send(message)
        return True

    def _cut_off(self, why: str) -> None:
        self._connection = None
        self._lost.set()

    def _hang_up(self, why: str) -> None:
        if self._connection is not None:
            _LOG.info("leaving the coordinator: %s", why)
            self._connection.hang_up()

    def _everything(self) -> Iterator[Message]:
        if self._serving is not None:
            yield self._serving
        yield NodeConnected(
            node=self._spec.node,
            agent=self._spec.agent,
            places=self._spec.places,
            workers=tuple(worker.state for worker in self._workers.values()),
            pids={worker.name: worker.pid for worker in self._workers.values()},
            arenas=self._snapshots.held(),
        )
        self._places = {}
        yield from self._steps
        yield from self._others

    def _tell(self, message: Message) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _apply(self, message: ToAgent) -> None:
        match message:
            case StartWorker(member=member):
                self._start(member)
            case KillWorker(member=member):
                if (worker := self._find(member)) is not None:
                    worker.kill()
            case ToMember(member=member, message=for_worker):
                if (worker := self._find(member)) is not None:
                    worker.send(for_worker)
            case OrderForNode():
                self._pass_on(message)
            case InjectFault(fault=fault):
                self._inject(fault)
            case StepsRecorded(step=step):
                self._steps = [told for told in self._steps if _step_of(told) >= self._recorded]
                self._recorded = step
            case SnapshotEvery() | PlaceCopies():
                for worker in self._workers.values():
                    worker.send_later(message)
            case DropArenas() | Persist() | Copy():
                self._snapshots.apply(message)
            case TermInDoubt(is_in_doubt=is_in_doubt):
                self._finder.doubted(is_in_doubt)
            case Peers(addresses=addresses):
                self._finder.learn(addresses)
                self._peers.update(addresses)
                self._snapshots.learn(message)
                for worker in self._workers.values():
                    worker.send_later(message)
            case EndNode(is_memory_useless=is_useless):
                self.is_memory_useless = is_useless
                self._end_with_job()

    def _end_with_job(self) -> None:
        self._is_job_over = True
        self._ended.set()

    def _pass_on(self, message: OrderForNode) -> None:
        for name, order in self._orders.unpack(message).items():
            worker = self._workers.get(name)
            # An order for an incarnation that is gone means nothing to the one after it.
            if worker is not None and order.incarnations.get(name, worker.member.incarnation) == (
                worker.member.incarnation
            ):
                worker.send(order)

    # Workers.

    def _find(self, member: Member) -> WorkerProcess | None:
        worker = self._workers.get(member.name)
        return worker if worker is not None and worker.member == member else None

    def _start(self, member: Member) -> None:
        """Once; and not before the process that has the name is gone."""
        if member.incarnation <= self._highest.get(member.name, 0):
            return
        self._highest[member.name] = member.incarnation
        before = self._workers.get(member.name) or self._ending.get(member.name)
        if before is not None:
            before.kill()
            self._waiting[member.name] = member
            return
        log = Path(self._spec.log_dir) / f"{member.name}.log"
        self._workers[member.name] = WorkerProcess(
            member, self._forker, log, self._receive, self._hung_up
        )

    def _receive_fork_notice(self) -> None:
        try:
            notice = self._forker.receive()
        except ForkServerGone:
            self._ended.set()
            return
        if self._finder.handle_fork_notice(notice) or self._snapshots.handle_fork_notice(notice):
            return
        ticket = _ticket(notice)
        known = (*self._workers.values(), *self._ending.values())
        worker = next((w for w in known if w.ticket == ticket), None)
        if worker is None:
            return
        match notice:
            case Forked(pid=pid):
                worker.forked(pid)
                _LOG.info("started %s, process %d", worker.member, pid)
                self._tell(WorkerStarted(member=worker.member, pid=pid))
            case Exited(status=status):
                self._reap(worker, status)

    def _hung_up(self, worker: WorkerProcess) -> None:
        """Its socket is closed. A killed process of a device is reaped half a second after it has
        run its last line, when the driver has given back its memory: what the kernel knows of its
        end is enough to tell of it. One that says 0 is not missed, or the kernel does not tell us.
        """
        look = read_process(worker.pid) if worker.pid else None
        if look is not None and look.ends_with and self._find(worker.member) is worker:
            self._ending[worker.name] = worker
            self._snapshots.worker_ended()
            self._tell_end(worker, look.ends_with)

    def _reap(self, worker: WorkerProcess, status: int) -> None:
        worker.ended()
        _LOG.info("%s ended with status %d", worker.member, status)
        if self._find(worker.member) is worker:
            self._tell_end(worker, status)
        self._ending.pop(worker.name, None)
        following = self._waiting.pop(worker.name, None)
        if following is not None:
            self._highest[worker.name] = following.incarnation - 1
            self._start(following)

    def _tell_end(self, worker: WorkerProcess, status: int) -> None:
        del self._workers[worker.name]
        self._places.pop(worker.name, None)
        self._tell(
            WorkerExited(
                member=worker.member,
                how=describe_exit(status, worker.last_words),
                has_said_why=bool(worker.last_words),
            )
        )

    def _receive(self, worker: WorkerProcess, message: FromWorker) -> None:
        match message:
            case Hello():
                worker.assign(self._assignment(worker.member))
            case WorkerState() as state if state.member == worker.member:
                worker.state = state
            case StepReport() as report:
                worker.at_version(report.step + 1)
            case Failed(line=line):
                worker.last_words = line
            case ArenaWanted() | Sealed() | LightGiven():
                self._snapshots.receive(worker, message)
                return
        told = Relayed(member=worker.member, message=message)
        self._tell(told)
        if isinstance(message, StepReport):
            self._steps.append(told)
        elif not isinstance(message, WorkerState | Hello | ProbeDone):
            # What a probe has shown is of use to the coordinator that ordered it, and to no other.
            self._others = [*self._others[-KEPT_MESSAGES:], told]

    def _assignment(self, member: Member) -> Assignment:
        mine = [
            fault
            for fault in self._spec.assignment.faults
            if (fault.target == member.name or fault.hits_all) and member.incarnation == 1
        ]
        return msgspec.structs.replace(
            self._spec.assignment,
            worker=member.name,
            incarnation=member.incarnation,
            faults=tuple(mine),
            access=self._snapshots.access(),
        )

    # Progress.

    async def _beat(self) -> None:
        """The agent lives, and this has moved since the last beat."""
        while True:
            now = now_ms()
            places = {name: worker.place(now) for name, worker in self._workers.items()}
            moved = {name: p for name, p in places.items() if self._places.get(name) != p}
            if self._connection is not None:
                self._places = places
                self._tell(Beat(node=self._spec.node, sent_ms=now, places=moved))
            await asyncio.sleep(self._spec.heartbeat_ms / 1000)

    # Faults on purpose.

    def _other_hosts(self) -> list[str]:
        """Addresses of the job's other hosts, and of the coordinator's."""
        own = self._spec.serves
        found = [peer.host for peer in self._peers.values()] if own else []
        if own and self._connection is not None:
            found.append(self._connection.address)
        return [address for address in dict.fromkeys(found) if address != own]

    def _inject(self, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        worker = self._workers.get(fault.target)
        match fault.kind:
            case "NODE_LOSS":
                self._snapshots.lose()
                os.kill(os.getpid(), signal.SIGKILL)
            case "PARTITION":
                self._away_until = loop.time() + (fault.duration_s or float("inf"))
                self._hang_up("cut off on purpose")
            case "HOST_CUT" | "HOST_SLOW":
                self._troubles.append(HostTrouble(fault, self._other_hosts()))
            case _ if fault.hits_all:
                for each in self._workers.values():
                    each.send(FaultMessage(fault=fault))
            case _ if worker is None:
                _LOG.warning("%s was not done: %s does not run here", fault.kind, fault.target)
            case kind if kind in SIGNALS:
                worker.signal(signal.Signals[kind])
                if kind == "SIGSTOP" and fault.duration_s:
                    loop.call_later(fault.duration_s, worker.signal, signal.SIGCONT)
            case _:
                worker.send_later(FaultMessage(fault=fault))


def _step_of(told: Relayed) -> int:
    assert isinstance(told.message, StepReport)
    return told.message.step


def _ticket(notice: object) -> int:
    return notice.ticket if isinstance(notice, Forked | Exited) else 0


def run_agent(spec: AgentSpec, launcher: socket.socket, control_fd: int) -> int:
    """An agent's whole life; `control_fd` is its way to the fork server."""
    forker = Forker(socket.socket(fileno=control_fd))

    async def live() -> None:
        await Agent(spec, forker).run(launcher)

    with suppress(KeyboardInterrupt):
        asyncio.run(live())
    return 0
