"""The coordinator process: carries facts to the machine that decides, and its effects out.

All decisions are in `control/`; here are sockets, files and clocks. What the machine wants recorded
is on disk before anything that follows is sent. Agents connect and say everything they know, so a
coordinator that was started again goes on from its journal and from them; meanwhile the workers
train.

The process ends when the job does, or with the launcher, which starts another if this one is lost.
It also ends with the first exception: the machine believes that all its effects were carried out,
and only a successor that asks all agents finds out which of them were not. A disk that does not
take the journal is none: what depends on it waits (`effect_queue`).
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from holdfast.control.job_events import AllReady, StepCompleted
from holdfast.control.message import Message
from holdfast.control.settings import (
    ControlSettings,
    DetectSettings,
    ReplanSettings,
    SnapshotSettings,
)
from holdfast.control.snapshots.messages import Copied, NodeHolds, Persisted, Unloadable
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport, StepReport
from holdfast.observe import events
from holdfast.observe.run_directory import CHECKPOINTS, log_name
from holdfast.plan.workers import node_of
from holdfast.runtime.config.snapshot_options import memory_folder, snapshot_options
from holdfast.runtime.coordinator.admin_api import AdminApi
from holdfast.runtime.coordinator.advisor_process import AdvisorProcess
from holdfast.runtime.coordinator.control_journal import CONTROL, ControlJournal
from holdfast.runtime.coordinator.disk_watch import DiskWatch
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.effect_queue import EffectQueue
from holdfast.runtime.coordinator.joining import HostJoins
from holdfast.runtime.launch.job import Job
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
from holdfast.runtime.rendezvous.rendezvous import open_rendezvous
from holdfast.runtime.wire.connection import (
    Gate,
    ServerConnection,
    Strangers,
    is_refused,
    server_tls,
)
from holdfast.runtime.wire.frames import FROM_AGENT, FROM_CLIENT, FROM_HOST, Reader
from holdfast.runtime.wire.host_messages import JoinRequest, Peers, Serving
from holdfast.runtime.wire.messages import (
    EndNode,
    Failed,
    KillWorker,
    ProbeDone,
    Relayed,
    StartWorker,
    ToMember,
)
from holdfast.runtime.worker.progress_page import now_ms
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.disk.checkpoints import valid_checkpoints
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.memory.node_arenas import reachable

_LOG = logging.getLogger(__name__)

LEAVE_DEADLINE_S = 30.0
STOP_DEADLINE_S = 1.0
"""For workers to leave after a stop: what they had to write is written."""
ENTER_MS = 30_000
PROBE_S = 1.0
GRACE_S = 10.0
"""How much longer than its workers the coordinator waits for any sign of progress."""


class CoordinatorServer:
    def __init__(self, spec: CoordinatorSpec) -> None:
        run_dir = Path(spec.run_dir)
        self._spec = spec
        self._journal = ControlJournal(run_dir / CONTROL)
        self._run_log = RunLog(run_dir, spec.backend, spec.clock, spec.first_step)
        self._machine = Coordinator(
            settings_of(spec), self._journal.entries, self._run_log.recorded
        )
        self._run_log.know(self._machine.view.plans)
        self._dispatch = Dispatch()
        self._effects = EffectQueue(self._journal, self._run_log.note, self._do)
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
        )
        self._ending: Ending | None = None
        self._ended = asyncio.Event()
        self._all_left = asyncio.Event()
        self._woken = asyncio.Event()
        self._error: Exception | None = None
        self._link = LauncherLink(self._guarded(self._on_launcher), self._ended.set)
        self._advisor = AdvisorProcess(self._guarded(lambda said: self._take(PlanAnswered(said))))
        self._joining = self._make_joining() if spec.assignment is not None else None
        self._has_gathered = asyncio.Event()
        self._peers: dict[str, Serving] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}

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
            self._machine.term,
            self._strangers,
            {},
            lambda connection: None,
            self._guarded(self._on_message),
            self._guarded(self._on_lost),
        )
        job = self._spec.config.job
        tls = server_tls(job.tls_cert, job.tls_key)
        if self._joining is not None:
            gate.readers["host"] = FROM_HOST
        serve = loop.create_server(lambda: ServerConnection(gate), sock=listener, ssl=tls)
        if self._joining is not None and not self._is_successor:
            server = await serve
            await self._gather(self._joining)
            self._begin(gate)
        else:
            self._begin(gate)
            server = await serve
        ticking = asyncio.create_task(self._keep_ticking())
        await self._ended.wait()
        for task in (ticking, *self._probes.values()):
            task.cancel()
        server.close()
        await self._advisor.close()
        if self._error is not None:
            raise self._error
        await self._say_good_bye()

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
        readers: dict[str, Reader[Any]] = {"agent": FROM_AGENT, "client": FROM_CLIENT}
        gate.readers.update(readers)

    # Hosts.

    def _make_joining(self) -> HostJoins:
        spec = self._spec
        assert spec.assignment is not None
        return HostJoins(
            open_rendezvous(spec.config.net.rendezvous),
            Job(spec.config, spec.plans, ()).workers,
            spec.config.recovery.heartbeat_ms,
            spec.assignment,
            lambda text: self._run_log.tell([events.HostJoined(reason=text)]),
        )

    async def _gather(self, joining: HostJoins) -> None:
        """Until a host has joined for every node; or the job ends before it has begun."""
        within_s = self._spec.config.net.gather_within_s
        waits = [asyncio.create_task(event.wait()) for event in (self._has_gathered, self._ended)]
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if joining.missing and not self._ended.is_set():
            self._end(
                "failed",
                f"waited {within_s:g} s for hosts, and none has joined for "
                f"{', '.join(joining.missing)}; on each of them: holdfast agent --join "
                f"{self._spec.config.net.rendezvous}",
            )

    def _join(self, request: JoinRequest) -> Message:
        assert self._joining is not None
        reply = self._joining.answer(request, self._machine.view.present_nodes, now_ms())
        if not self._joining.missing:
            self._has_gathered.set()
        return reply

    def _introduce(self, connection: ServerConnection, serving: Serving) -> None:
        """Agents learn where the others are before any order makes them look for each other."""
        self._dispatch.to_all(Peers(addresses={serving.node: serving.peer}))
        self._peers[serving.node] = serving
        connection.send(Peers(addresses={node: s.peer for node, s in self._peers.items()}))

    def _guarded(self, action: Callable[..., object]) -> Callable[..., None]:
        """Nothing is done after an exception, and the process ends with it."""

        def act(*args: Any) -> None:
            if self._error is not None:
                return
            try:
                action(*args)
            except Exception as error:
                self._error = error
                self._ended.set()

        return act

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

    async def _say_good_bye(self) -> None:
        """Workers that are done leave by themselves; one that does not goes with its agent."""
        if self._ending is None:
            return
        view = self._machine.view
        if self._ending.outcome != "failed" and view.num_workers:
            deadline_s = STOP_DEADLINE_S if view.is_stopping else LEAVE_DEADLINE_S
            try:
                async with asyncio.timeout(deadline_s):
                    await self._all_left.wait()
            except TimeoutError:
                names = ", ".join(view.workers)
                _LOG.warning("%s did not leave within %g s", names, deadline_s)
        is_useless = self._ending.outcome == "finished" or self._ending.is_state_lost
        self._dispatch.to_all(EndNode(is_memory_useless=is_useless))
        self._dispatch.close()
        unwritten = await self._disk.write_last()
        self._link.send(msgspec.structs.replace(self._ending, unwritten=unwritten))
        self._link.close()
        await asyncio.sleep(0.01)

    # Facts.

    def _take(self, fact: Fact) -> None:
        if not isinstance(fact, Tick | Beat | StepReported):
            self._woken.set()
        if self._ending is None or self._ending.outcome != "failed":
            self._carry_out(self._machine.take(fact, now_ms()))

    def _on_message(self, connection: ServerConnection, message: Any) -> None:
        if connection.role == "client":
            connection.send(self._admin.serve(message))
        elif connection.role == "host":
            connection.send(self._join(message))
        else:
            self._on_agent(connection, message)

    def _on_agent(self, connection: ServerConnection, message: object) -> None:
        match message:
            case Serving():
                self._introduce(connection, message)
            case NodeConnected():
                self._on_connected(connection, message)
            case WorkerStarted() | Beat() | NodeHolds() | Copied():
                self._take(message)
            case WorkerExited():
                self._take(message)
                if not self._machine.view.num_workers:
                    self._all_left.set()
            case Relayed():
                self._on_worker(message)
            case Persisted():
                self._on_written(message)

    def _on_connected(self, connection: ServerConnection, state: NodeConnected) -> None:
        self._dispatch.connect(state.node, connection)
        if self._joining is not None:
            self._joining.connected(state.node)
        self._take(state)
        _LOG.info("the agent of %s is connected, with %d workers", state.node, len(state.workers))

    def _on_lost(self, connection: ServerConnection, why: str) -> None:
        if self._dispatch.disconnect(connection.name, connection):
            _LOG.warning("the agent of %s is cut off: %s", connection.name, why)
            self._take(NodeLost(connection.name, why, self._left_of(connection.name)))
            serving = self._peers.get(connection.name)
            if serving is not None and self._ending is None:
                probe = self._probe(serving)
                self._probes[connection.name] = asyncio.create_task(probe)

    async def _probe(self, serving: Serving) -> None:
        """Is its agent dead, or cut off? A host that refuses the connection says that no process of
        that agent is left, for its workers die with it; a host that says nothing proves nothing.
        """
        loop = asyncio.get_running_loop()
        while serving.node not in self._dispatch.nodes and self._peers[serving.node] == serving:
            if await is_refused(loop, serving.peer.host, serving.peer.port):
                how = f"the agent of {serving.node} has ended"
                # Another host may take its place, or this one is back with another agent.
                self._guarded(self._take)(NodeDead(serving.node, how, will_return=True))
                return
            await asyncio.sleep(PROBE_S)

    def _left_of(self, node: str) -> tuple[HeldArena, ...]:
        """What of a node's memory can be read without its agent; of another host, nothing."""
        if self._joining is not None:
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
            case StopRequest(signal=name) if not self._machine.view.is_stopping:
                reason = "stopping with a checkpoint at the next step boundary"
                if name == "SIGINT":
                    reason += "; Ctrl-C again to stop at once"
                self._run_log.tell([events.StopRequested(signal=name, reason=reason)])
                self._take(StopWanted(name))
            case NodeEnded(node=node, how=how, will_return=will_return):
                self._take(NodeDead(node, how, will_return, self._left_of(node)))

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
            case ToAllNodes(message=StepsRecorded()) if self._run_log.trouble:
                pass  # they are not: a successor would ask for them
            case ToAllNodes(message=told):
                self._dispatch.to_all(told)
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
                if isinstance(event, AllReady) and self._machine.settings.replan.policy == "auto":
                    self._advisor.start()
            case Finish(outcome=outcome, reason=reason):
                self._end(outcome, reason)
            case Fail(reason=reason, worker=worker, is_state_lost=is_state_lost):
                log = Path(self._spec.run_dir) / log_name(worker)
                why = f"{reason}; its log is {log}" if worker else reason
                self._end("failed", why, is_state_lost=is_state_lost)

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


def settings_of(spec: CoordinatorSpec) -> ControlSettings:
    recovery, snapshot = spec.config.recovery, spec.config.snapshot
    options = snapshot_options(spec.config, spec.memory, "")
    return ControlSettings(
        plan=spec.plans[0].plan,
        changes=spec.plans,
        first_step=spec.first_step,
        run=spec.run,
        grace_ms=int(1000 * spec.config.job.grace_s),
        num_steps=spec.config.job.steps,
        ends_with_failure=recovery.mode == "off",
        patience_ms=int(1000 * (spec.config.job.timeout_s + GRACE_S)),
        heartbeat_ms=recovery.heartbeat_ms,
        hang_floor_ms=recovery.hang_floor_ms,
        hang_multiple=recovery.hang_multiple,
        detect=DetectSettings(on=spec.config.detect.on, learn_steps=spec.config.detect.learn_steps),
        snapshots=SnapshotSettings(
            options=options if spec.memory else None,
            persists=snapshot.persists,
            checkpoint_every_s=snapshot.persist_every_s,
            max_cost=snapshot.max_cost,
        ),
        mode="fast" if recovery.mode == "fast" else "exact",
        non_finite=recovery.non_finite,
        go_back_tries=recovery.go_back_tries,
        settle_ms=recovery.settle_ms,
        answer_ms=recovery.answer_ms,
        enter_ms=min(ENTER_MS, int(250 * spec.config.job.timeout_s)),
        join_within_ms=int(1000 * recovery.join_within_s),
        lost_after_ms=recovery.lost_after_ms,
        max_restarts=recovery.max_restarts,
        restart_window_ms=int(1000 * recovery.restart_window_s),
        replan=ReplanSettings(
            policy=recovery.plan if recovery.mode != "off" else "off",
            search_s=recovery.plan_search_s,
            node_return_s=recovery.node_return_s,
        ),
    )


def run_coordinator(spec: CoordinatorSpec, launcher: socket.socket, listener_fd: int) -> int:
    """A coordinator's whole life, on a bound socket."""

    async def live() -> None:
        listener = socket.socket(fileno=listener_fd)
        listener.setblocking(False)
        await CoordinatorServer(spec).run(launcher, listener)

    asyncio.run(live())
    return 0
