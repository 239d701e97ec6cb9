"""The coordinator process: carries facts to the machine that decides, and its effects out.

All decisions are in `control/`; here are sockets, files and clocks. What the machine wants recorded
is on disk before anything that follows is sent. Agents connect and say everything they know, so a
coordinator that was started again goes on from its journal and from them; meanwhile the workers
train.

The process ends when the job does, or with the process that has started it: the launcher, which
starts another if this one is lost, or an agent of a job that hosts join (`job_hosts`). It also ends
with the first exception, in a message or beside them (`coordinator_tasks`): the machine believes
that all its effects were carried out, and only a successor that asks all agents finds out which of
them were not. A disk that does not take the journal is none: what depends on it waits
(`effect_queue`).
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    ProbeWork,
    RunProbe,
    Send,
    Start,
    StepsRecorded,
    ToAllNodes,
    ToNode,
)
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
    ProbeAnswered,
    StepReported,
    StopWanted,
    Tick,
    WorkerExited,
    WorkerFailing,
    WorkerStarted,
    WorkerTold,
)
from holdfast.control.job_events import StepCompleted
from holdfast.control.message import Message
from holdfast.control.snapshots.messages import Copied, NodeHolds, Persisted, Unloadable
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport, StepReport
from holdfast.observe import events
from holdfast.observe.run_directory import CHECKPOINTS, log_name
from holdfast.plan.workers import node_of
from holdfast.runtime.config.snapshot_options import memory_folder
from holdfast.runtime.coordinator.admin_api import AdminApi
from holdfast.runtime.coordinator.advisor_process import AdvisorProcess
from holdfast.runtime.coordinator.control_journal import CONTROL, ControlJournal
from holdfast.runtime.coordinator.coordinator_tasks import CoordinatorTasks
from holdfast.runtime.coordinator.disk_watch import DiskWatch
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.effect_queue import LAST_WAIT_MS, EffectQueue
from holdfast.runtime.coordinator.job_hosts import JobHosts
from holdfast.runtime.coordinator.machine_settings import settings_of
from holdfast.runtime.coordinator.rendezvous_journal import JournalWriter
from holdfast.runtime.coordinator.shutdown import Shutdown
from holdfast.runtime.launch.launcher_messages import (
    CannotWrite,
    CheckpointRequest,
    CoordinatorSpec,
    Ending,
    FromLauncher,
    LauncherLink,
    NodeEnded,
    StopRequest,
    Wrote,
)
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.rendezvous.rendezvous import Superseded
from holdfast.runtime.wire.connection import (
    BACKLOG,
    Gate,
    ServerConnection,
    Strangers,
)
from holdfast.runtime.wire.frames import FROM_AGENT, FROM_CLIENT, FROM_HOST, Reader
from holdfast.runtime.wire.host_messages import Serving
from holdfast.runtime.wire.messages import (
    Failed,
    KillWorker,
    ProbeDone,
    Relayed,
    StartWorker,
    ToMember,
)
from holdfast.runtime.wire.tls import files_of, server_tls
from holdfast.runtime.worker.progress_page import now_ms
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.disk.checkpoints import valid_checkpoints
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.memory.node_arenas import reachable

_LOG = logging.getLogger(__name__)


class CoordinatorServer:
    def __init__(self, spec: CoordinatorSpec, address: tuple[str, int] = ("", 0)) -> None:
        """`address`: where agents find it, if hosts join the job."""
        run_dir = Path(spec.run_dir)
        self._spec = spec
        self._hosts = JobHosts(spec, address) if spec.assignment is not None else None
        self._journal: JournalWriter = (
            ControlJournal(run_dir / CONTROL) if self._hosts is None else self._hosts.journal
        )
        self._run_log = RunLog(run_dir, spec.backend, spec.clock, spec.first_step)
        term = 0 if self._hosts is None else self._hosts.term
        self._machine = Coordinator(
            settings_of(spec, term), self._journal.entries, self._run_log.recorded
        )
        self._run_log.know(self._machine.view.plans)
        self._dispatch = Dispatch()
        last_wait_ms = LAST_WAIT_MS if self._hosts is None else None
        self._effects = EffectQueue(self._journal, self._run_log.note, self._do, last_wait_ms)
        self._disk = DiskWatch(self._effects, self._run_log, self._say_full)
        self._strangers = Strangers(_LOG.warning, time.monotonic)
        self._admin = AdminApi(
            spec,
            self._machine.view,
            self._run_log,
            self._dispatch,
            self._strangers,
            now_ms(),
            stop=lambda: self._on_launcher(StopRequest(signal="a client")),
            checkpoint=lambda name: self._on_launcher(CheckpointRequest(signal=name)),
        )
        self._ending: Ending | None = None
        self._ended = asyncio.Event()
        self._woken = asyncio.Event()
        self._error: BaseException | None = None
        self._background = CoordinatorTasks(self._end_with)
        self._link = LauncherLink(self._guarded(self._on_launcher), self._ended.set)
        self._shutdown = Shutdown(
            self._machine.view, self._dispatch, self._disk, self._link, self._hosts
        )
        self._advisor = AdvisorProcess(
            self._guarded(lambda said: self._take(PlanAnswered(said))), self._background.start
        )
        self._has_begun = False
        if self._hosts is not None:
            take = self._guarded(self._take)
            self._hosts.serve(self._dispatch, self._run_log, take, self._background.start)

    # Life.

    async def run(self, launcher: socket.socket, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        launcher.setblocking(False)
        await loop.create_connection(lambda: self._link, sock=launcher)
        self._run_log.on_write = lambda journal, metrics: self._link.send(
            Wrote(journal=journal, metrics=metrics)
        )
        gate = Gate(
            self._spec.secret,
            self._machine.term if self._hosts is None else self._hosts.term,
            self._strangers,
            {},
            lambda connection: None,
            self._guarded(self._on_message),
            self._guarded(self._on_lost),
        )
        job = self._spec.config.job
        tls = server_tls(files_of(job))
        serve = loop.create_server(
            lambda: ServerConnection(gate), sock=listener, ssl=tls, backlog=BACKLOG
        )
        if self._hosts is not None:
            gate.readers["host"] = FROM_HOST
            self._background.start(self._hosts.keep_term(self._end_with))
        if self._hosts is not None and not self._is_successor:
            gate.readers["agent"] = FROM_AGENT
            server = await serve
            if missing := await self._hosts.gather(self._ended):
                self._end("failed", missing)
            self._begin(gate)
            if self._has_begun and (absent := self._hosts.joining.missing):
                self._take(NodesAbsent(tuple(absent)))
        else:
            self._begin(gate)
            server = await serve
        self._background.start(self._keep_ticking())
        await self._ended.wait()
        self._background.cancel()
        await self._advisor.close()
        if self._error is not None:
            raise self._error
        if self._ending is not None:
            await self._shutdown.run(self._ending)  # also to an agent that was away, and comes now
        server.close()

    @property
    def _is_successor(self) -> bool:
        return bool(self._journal.entries) and self._machine.view.run == self._spec.run

    def _begin(self, gate: Gate) -> None:
        """Take the term, before any agent can ask for it."""
        if self._ended.is_set():
            return
        if self._is_successor:
            self._run_log.tell([_took_over(self._machine.term + 1)])
        self._take(Tick())
        self._find_checkpoints()
        gate.term = self._machine.term
        self._has_begun = True
        readers: dict[str, Reader[Any]] = {"agent": FROM_AGENT, "client": FROM_CLIENT}
        gate.readers.update(readers)

    def _guarded(self, action: Callable[..., object]) -> Callable[..., None]:
        """Nothing is done after an exception, and the process ends with it."""

        def act(*args: Any) -> None:
            if self._error is not None:
                return
            try:
                action(*args)
            except Exception as error:
                self._end_with(error)

        return act

    def _end_with(self, error: BaseException | None) -> None:
        """None: another process has said at the rendezvous that the run is over."""
        self._error = self._error or error
        self._ended.set()

    async def _keep_ticking(self) -> None:
        """Sleep until the machine or a fault on purpose is due; facts move that time."""
        tick = self._guarded(self._tick)
        while True:
            due_ms = min(self._machine.next_deadline_ms(now_ms()), self._admin.due_ms(now_ms()))
            due_ms = self._disk.due_ms(due_ms)
            self._woken.clear()
            try:
                async with asyncio.timeout((due_ms - now_ms()) / 1000):
                    await self._woken.wait()
            except TimeoutError:
                tick()

    def _tick(self) -> None:
        self._disk.try_again()
        self._take(Tick())
        self._admin.inject_due(now_ms())

    # Facts.

    def _take(self, fact: Fact) -> None:
        if not isinstance(fact, Tick | Beat | StepReported):
            self._woken.set()
        if self._ending is None or self._ending.outcome != "failed":
            self._carry_out(self._machine.take(fact, now_ms()))

    def _on_message(self, connection: ServerConnection, message: Any) -> None:
        if connection.role == "client":
            connection.send(self._admin.serve(message))
        elif self._hosts is not None and connection.role == "host":
            present = self._machine.view.present_nodes
            connection.send(self._hosts.join(message, present, now_ms()))
        elif self._hosts is not None and not self._has_begun:
            self._hosts.greet(connection, message)
        else:
            self._on_agent(connection, message)

    def _on_agent(self, connection: ServerConnection, message: object) -> None:
        if self._hosts is not None:
            self._hosts.heard(connection.name)
        match message:
            case Serving() if self._hosts is not None:
                self._hosts.introduce(message)
            case NodeConnected():
                self._on_connected(connection, message)
            case WorkerStarted() | Beat() | NodeHolds() | Copied():
                self._take(message)
            case WorkerExited():
                self._take(message)
                self._shutdown.wake()
            case Relayed():
                self._on_worker(message)
            case Persisted():
                self._on_written(message)

    def _on_connected(self, connection: ServerConnection, state: NodeConnected) -> None:
        self._dispatch.connect(state.node, connection)
        if self._hosts is not None:
            self._hosts.joining.connected(state.node)
            self._hosts.tell_peers(connection)
        self._take(state)
        _LOG.info("the agent of %s is connected, with %d workers", state.node, len(state.workers))

    def _on_lost(self, connection: ServerConnection, why: str) -> None:
        if not self._dispatch.disconnect(connection.name, connection):
            return
        if not self._shutdown.has_told_agents:
            _LOG.warning("the agent of %s is cut off: %s", connection.name, why)
            self._take(NodeLost(connection.name, why, self._left_of(connection.name)))
        self._shutdown.wake()
        if self._hosts is not None and self._ending is None:
            self._hosts.probe(connection.name)

    def _left_of(self, node: str) -> tuple[HeldArena, ...]:
        """What of a node's memory can be read without its agent; of another host, nothing."""
        if self._hosts is not None:
            return ()
        memory, folder = self._spec.memory, memory_folder(self._spec.config)
        return reachable(node_job(memory, node), folder) if memory else ()

    def _on_written(self, message: Persisted) -> None:
        written = events.CheckpointWritten(
            reason=message.reason,
            step=message.version.step,
            path=message.path,
            seconds=message.seconds,
            error=message.error,
        )
        self._run_log.tell([written])
        self._find_checkpoints()
        self._take(message)

    def _find_checkpoints(self) -> None:
        found = valid_checkpoints(Path(self._spec.run_dir) / CHECKPOINTS)
        if found:
            self._take(CheckpointsFound(found))

    def _on_worker(self, told: Relayed) -> None:
        member = told.member
        match told.message:
            case WorkerState() as state:
                if state.member == member:
                    self._take(WorkerTold(state))
            case StepReport() as step:
                self._take(StepReported(member, step))
            case ChangeReport() | RecoveryReport() | RestoreReport() as report:
                self._take(EpochReported(member, report))
            case Failed(line=line, is_consequence=is_consequence):
                self._take(WorkerFailing(member, line, is_consequence))
            case ProbeDone(number=number, seconds=seconds):
                self._take(ProbeAnswered(member, number, seconds))
            case Unloadable() as unloadable:
                self._take(unloadable)
            case other:
                self._run_log.note_worker(member, other)

    def _on_launcher(self, message: FromLauncher) -> None:
        match message:
            case CheckpointRequest(signal=name):
                self._take(CheckpointWanted(f"{name} asks for it"))
            case StopRequest(signal=name):
                self._take(StopWanted(name))
            case NodeEnded(node=node, agent=agent, how=how, will_return=will_return):
                self._take(NodeDead(node, how, will_return, self._left_of(node), agent))

    # Effects.

    def _carry_out(self, effects: list[Effect]) -> None:
        self._effects.add(effects, now_ms())
        self._dispatch.flush()
        if self._disk.look():
            self._woken.set()

    def _say_full(self, trouble: str) -> None:
        self._link.send(CannotWrite(reason=f"{trouble}: {self._spec.run_dir}"))

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(member=member, message=message):
                self._dispatch.to_worker(member, message)
            case RunProbe(member=member, number=number):
                told_worker = ToMember(member=member, message=ProbeWork(number=number))
                self._dispatch.to_node(node_of(member.name), told_worker)
            case Kill(member=member, reason=reason):
                self._dispatch.to_node(
                    node_of(member.name), KillWorker(member=member, reason=reason)
                )
            case Start(member=member):
                self._dispatch.to_node(node_of(member.name), StartWorker(member=member))
            case ToNode(node=node, message=told):
                self._dispatch.to_node(node, told)
            case ToAllNodes(message=told):
                self._tell_all(told)
            case Disconnect(node=node):
                self._dispatch.hang_up(node)
            case AskPlanner(question=question):
                self._advisor.ask(question)
            case Explain(text=text, details=details):
                self._run_log.tell([events.Decided(reason=text, details=details)])
            case Happened(event=event):
                self._run_log.happened(event, self._machine.newest_snapshot)
                if isinstance(event, StepCompleted):
                    self._admin.inject_due(now_ms())
            case Finish(outcome=outcome, reason=reason):
                self._end(outcome, reason)
            case Fail(reason=reason, worker=worker, is_state_lost=is_state_lost):
                log = Path(self._spec.run_dir) / log_name(worker)
                why = f"{reason}; its log is {log}" if worker else reason
                self._end("failed", why, is_state_lost=is_state_lost)

    def _tell_all(self, told: Message) -> None:
        if isinstance(told, StepsRecorded):
            if self._run_log.trouble:
                return  # they are not: a successor would ask for them
            if self._hosts is not None:
                self._run_log.sync()  # a successor may be on another host
        self._dispatch.to_all(told)

    def _end(self, outcome: str, reason: str, *, is_state_lost: bool = False) -> None:
        """Once, whatever comes after."""
        if self._ending is not None:
            return
        finished = list(self._run_log.finished.values())
        self._ending = Ending(
            outcome=outcome,
            reason=reason,
            is_state_lost=is_state_lost,
            staging_bytes=max((told.staging_bytes for told in finished), default=0),
            final_bytes=sum(told.final_bytes for told in finished),
            profile=self._run_log.profile(self._machine.view.profile),
        )
        self._ended.set()


def _took_over(term: int) -> events.CoordinatorStarted:
    return events.CoordinatorStarted(
        term=term, reason="the one before was lost; this one goes on from its journal"
    )


def run_coordinator(spec: CoordinatorSpec, launcher: socket.socket, listener_fd: int) -> int:
    """A coordinator's whole life, on a bound socket."""

    async def live() -> None:
        listener = socket.socket(fileno=listener_fd)
        listener.setblocking(False)
        await CoordinatorServer(spec, listener.getsockname()[:2]).run(launcher, listener)

    try:
        asyncio.run(live())
    except Superseded as error:
        _LOG.warning("this coordinator ends: %s", error)
    return 0
