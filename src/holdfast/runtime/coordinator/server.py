"""The coordinator process: carries facts to the machine that decides, and its effects out.

All decisions are in `control/`; here are sockets, files and clocks. What the machine wants recorded
is on disk before anything that follows is sent. Agents connect and say everything they know, so a
coordinator that was started again goes on from its journal and from them; meanwhile the workers
train.

The process ends when the job does, or with the launcher, which starts another if this one is lost.
It also ends with the first exception, be it a mistake here or a disk that does not take the
journal: the machine believes that all its effects were carried out, and only a successor that asks
all agents finds out which of them were not.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Effect, Explain, Fail, Finish, Kill, Record, Send, Start
from holdfast.control.facts import (
    Fact,
    NodeConnected,
    NodeDead,
    NodeLost,
    SnapshotKept,
    StopWanted,
    Tick,
    WorkerExited,
    WorkerTold,
)
from holdfast.control.settings import ControlSettings
from holdfast.control.state import WorkerState
from holdfast.observe import events
from holdfast.plan.workers import node_of
from holdfast.runtime.coordinator.admin_api import AdminApi
from holdfast.runtime.coordinator.control_journal import CONTROL, ControlJournal
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.ending import JobEnding
from holdfast.runtime.coordinator.failures import Failure, describe_exit, said
from holdfast.runtime.coordinator.hang_monitor import HangMonitor
from holdfast.runtime.coordinator.planned_change_queue import PlannedChangeQueue
from holdfast.runtime.coordinator.poll_interval import PollInterval
from holdfast.runtime.coordinator.snapshot_coordination import desk_of
from holdfast.runtime.launch.launcher_messages import (
    CoordinatorSpec,
    LauncherLink,
    NodeEnded,
    StopRequest,
    Wrote,
)
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.record.step_aggregator import HoldersDiffer
from holdfast.runtime.wire import messages
from holdfast.runtime.wire.connection import Gate, ServerConnection, Strangers, server_tls
from holdfast.runtime.wire.frames import FROM_AGENT, FROM_CLIENT, Reader
from holdfast.runtime.wire.messages import (
    Beat,
    EndNode,
    Failed,
    KillWorker,
    NodeState,
    Relayed,
    StartWorker,
    StateMessage,
    StepsRecorded,
    WorkerStarted,
)
from holdfast.runtime.wire.snapshot_messages import Copied, Keeps, Persisted, Unloadable
from holdfast.runtime.worker.progress_page import now_ms

_LOG = logging.getLogger(__name__)

LOOK_MS = 100
"""How often, at most, agents are told what is written down, and hangs are looked for."""
LEAVE_DEADLINE_S = 30.0
ENTER_MS = 30_000


class CoordinatorServer:
    def __init__(self, spec: CoordinatorSpec) -> None:
        run_dir, config = Path(spec.run_dir), spec.config
        self._spec = spec
        self._journal = ControlJournal(run_dir / CONTROL)
        first = spec.plans[0].plan
        self._chronicle = RunLog(run_dir, first, spec.backend, self._seconds, spec.first_step)
        self._machine = Coordinator(settings_of(spec), self._journal.entries)
        self._chronicle.replay(self._journal.entries)
        self._dispatch = Dispatch()
        self._snapshots = desk_of(spec, self._chronicle, self._dispatch, self._take)
        self._states: dict[str, WorkerState] = {}
        self._strangers = Strangers(_LOG.warning, time.monotonic)
        past = self._chronicle.past
        self._vigil = HangMonitor(config.recovery, past, self._states, self._dispatch)
        self._agenda = PlannedChangeQueue(spec.plans, past)
        self._desk = AdminApi(
            spec, self._chronicle, self._dispatch, self._strangers, self._states, now_ms()
        )
        self._settled = self._looked_ms = 0
        self._is_ready = bool(self._journal.entries)
        self._ended = asyncio.Event()
        self._conclusion = JobEnding(spec, self._chronicle, now_ms(), self._ended.set)
        self._giving_up = self._conclusion.giving_up
        self._all_left = asyncio.Event()
        self._pulse = PollInterval()
        self._error: Exception | None = None
        self._link = LauncherLink(self._guarded(self._hear_launcher), self._ended.set)

    def _seconds(self) -> float:
        return (now_ms() - self._spec.began_ms) / 1000

    # Life.

    async def run(self, launcher: socket.socket, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        launcher.setblocking(False)
        await loop.create_connection(lambda: self._link, sock=launcher)
        self._chronicle.on_write = lambda journal, metrics: self._link.send(
            Wrote(journal=journal, metrics=metrics)
        )
        if self._journal.entries:
            self._chronicle.tell([_took_over(self._machine.term + 1)])
        self._take(Tick())  # takes the term, before anybody can ask for it
        readers: dict[str, Reader[Any]] = {"agent": FROM_AGENT, "client": FROM_CLIENT}
        gate = Gate(
            self._spec.secret,
            self._machine.term,
            self._strangers,
            readers,
            lambda connection: None,
            self._guarded(self._hear),
            self._guarded(self._cut_off),
        )
        job = self._spec.config.job
        server = await loop.create_server(
            lambda: ServerConnection(gate), sock=listener, ssl=server_tls(job.tls_cert, job.tls_key)
        )
        ticking = asyncio.create_task(self._keep_ticking())
        await self._ended.wait()
        ticking.cancel()
        server.close()
        if self._error is not None:
            raise self._error
        await self._say_good_bye()

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
        tick = self._guarded(self._tick)
        while True:
            await self._pulse.wait(is_calm=self._vigil.epoch > 0)
            tick()

    def _tick(self) -> None:
        self._take(Tick())
        self._begin_if_ready()
        self._want_next_plan()
        self._vigil.begin_if_all_train(now_ms())
        self._conclusion.give_up_if_due(now_ms())
        self._desk.inject_due(now_ms())
        if now_ms() - self._looked_ms >= LOOK_MS:
            self._looked_ms = now_ms()
            self._settle()
            self._look_for_hangs()

    async def _say_good_bye(self) -> None:
        """Everybody who is done leaves by itself; whoever does not goes with its agent."""
        ending = self._conclusion.ending
        if ending is None:
            return
        if ending.outcome != "failed" and self._states:
            try:
                async with asyncio.timeout(LEAVE_DEADLINE_S):
                    await self._all_left.wait()
            except TimeoutError:
                names = ", ".join(self._states)
                _LOG.warning("%s did not leave within %g s", names, LEAVE_DEADLINE_S)
        self._dispatch.to_all(EndNode())
        self._dispatch.close()
        self._link.send(ending)
        self._link.close()
        await asyncio.sleep(0.01)

    # Facts.

    def _take(self, fact: Fact) -> None:
        if not isinstance(fact, Tick | SnapshotKept):
            self._pulse.stir()
        if not self._conclusion.has_failed:
            self._carry_out(self._machine.take(fact, now_ms()))

    def _hear(self, connection: ServerConnection, message: Any) -> None:
        if connection.role == "client":
            connection.send(self._desk.serve(message))
            return
        try:
            self._hear_agent(connection, message)
        except HoldersDiffer as error:
            self._conclusion.end("failed", str(error))

    def _hear_agent(self, connection: ServerConnection, message: object) -> None:
        self._vigil.heard(connection.name, now_ms())
        match message:
            case NodeState():
                self._welcome(connection, message)
            case WorkerStarted(member=member, pid=pid):
                self._desk.pids[member.name] = pid
                self._told(WorkerState(member=member))
            case messages.WorkerExitedMessage():
                self._exited(message)
            case Relayed(member=member, message=StateMessage(state=state)):
                if state.member == member:
                    self._told(state)
            case Relayed(message=Unloadable(version=version, reason=reason)):
                self._snapshots.refuse(version, reason)
            case Relayed():
                self._note(message)
            case Keeps(arenas=arenas, waits_s=waits_s):
                self._snapshots.hear(connection.name, arenas, waits_s)
            case Persisted():
                self._snapshots.written(message)
            case Copied():
                self._snapshots.copied(message)
            case Beat(sent_ms=sent_ms, places=places):
                self._desk.places.update(places)
                self._vigil.beat(places, sent_ms, now_ms())

    def _welcome(self, connection: ServerConnection, state: NodeState) -> None:
        self._dispatch.connect(state.node, connection)
        self._forget(state.node)
        self._states.update((worker.member.name, worker) for worker in state.workers)
        self._desk.pids.update(state.pids)
        self._take(
            NodeConnected(
                node=state.node,
                agent=state.agent,
                places=state.places,
                workers=state.workers,
            )
        )
        self._snapshots.connected(state.node, state.arenas)
        _LOG.info("the agent of %s is connected, with %d workers", state.node, len(state.workers))

    def _forget(self, node: str) -> None:
        for name in [name for name in self._states if node_of(name) == node]:
            del self._states[name]
            self._vigil.gone(name)

    def _cut_off(self, connection: ServerConnection, why: str) -> None:
        if self._dispatch.disconnect(connection.name, connection):
            _LOG.warning("the agent of %s is cut off: %s", connection.name, why)
            self._snapshots.lose(connection.name)
            self._vigil.suspend()
            self._take(NodeLost(connection.name, why))

    def _told(self, state: WorkerState) -> None:
        self._giving_up.moved(now_ms())
        self._states[state.member.name] = state
        if state.broken and self._giving_up.is_strict:
            failure = said(state.member.name, state.broken, is_consequence=True)
            self._giving_up.failed(failure, now_ms())
            return
        self._take(WorkerTold(state))
        self._begin_if_ready()
        self._vigil.told(state)

    def _note(self, told: Relayed) -> None:
        """What does not concern the machine."""
        self._giving_up.moved(now_ms())
        member, message = told.member, told.message
        if isinstance(message, Failed) and message.is_consequence:
            failure = said(member.name, message.line, is_consequence=True)
            self._giving_up.failed(failure, now_ms())
        before = self._chronicle.ledger.next_step
        self._chronicle.hear(member, message)
        for step in self._chronicle.steps_since(before):
            self._vigil.stepped(step.epoch, step.step_time_s, now_ms())
            self._snapshots.stepped(step.step_time_s)
            self._desk.inject_due(now_ms())

    def _exited(self, message: messages.WorkerExitedMessage) -> None:
        member = message.member
        how = describe_exit(message.status, message.last_words)
        if message.last_words:
            self._conclusion.note_last_words(member.name, how)
        known = self._states.get(member.name)
        if known is not None and known.member == member:
            del self._states[member.name]
            self._vigil.gone(member.name)
        if not self._states:
            self._all_left.set()
        if self._conclusion.ending is not None:
            return
        if self._giving_up.is_strict:
            self._giving_up.failed(Failure(member.name, how, is_consequence=False), now_ms())
        else:
            self._take(WorkerExited(member, how))

    def _hear_launcher(self, message: StopRequest | NodeEnded) -> None:
        match message:
            case StopRequest(signal=name) if self._chronicle.past.stop is None:
                reason = "stopping at the next step boundary; once more to stop at once"
                self._chronicle.tell([events.StopRequested(signal=name, reason=reason)])
                self._take(StopWanted(name))
            case NodeEnded(node=node, how=how, will_return=will_return):
                self._forget(node)
                self._snapshots.lose(node)
                self._take(NodeDead(node, how, will_return))

    # What follows from the state.

    def _begin_if_ready(self) -> None:
        last = self._chronicle.past.last
        if self._is_ready or last is None:
            return
        if all(self._epoch_of(name) >= last.number for name in last.incarnations):
            self._is_ready = True
            self._chronicle.ready(dict(self._desk.pids))

    def _epoch_of(self, name: str) -> int:
        state = self._states.get(name)
        return state.epoch if state is not None else 0

    def _want_next_plan(self) -> None:
        if self._is_ready and (wanted := self._agenda.due()) is not None:
            self._take(wanted)

    def _look_for_hangs(self) -> None:
        for hung in self._vigil.look(now_ms()):
            if self._giving_up.is_strict:
                failure = Failure(hung.member.name, f"hangs: {hung.reason}", is_consequence=False)
                self._giving_up.failed(failure, now_ms())
            else:
                self._take(hung)

    def _settle(self) -> None:
        if self._chronicle.ledger.next_step > self._settled:
            self._settled = self._chronicle.ledger.next_step
            self._dispatch.to_all(StepsRecorded(step=self._settled))

    # Effects.

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Record):
                self._journal.append(effect.entry)
                self._chronicle.note(effect.entry)
                continue
            self._journal.sync()
            self._do(effect)
        self._journal.sync()
        self._dispatch.flush()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(member=member, message=message):
                self._dispatch.to_worker(member, message)
            case Kill(member=member, reason=reason):
                self._dispatch.to_node(
                    node_of(member.name), KillWorker(member=member, reason=reason)
                )
            case Start(member=member):
                self._dispatch.to_node(node_of(member.name), StartWorker(member=member))
            case Explain(text=text, details=details):
                self._chronicle.tell([events.Decided(reason=text, details=details)])
            case Finish(version=version):
                self._finish(version)
            case Fail(reason=reason):
                self._conclusion.fail(reason)

    def _finish(self, version: int) -> None:
        outcome, reason = self._conclusion.at(version)
        self._snapshots.persist_last(reason, lambda: self._conclusion.end(outcome, reason))


def _took_over(term: int) -> events.CoordinatorStarted:
    return events.CoordinatorStarted(
        term=term, reason="the one before was lost; this one goes on from its journal"
    )


def settings_of(spec: CoordinatorSpec) -> ControlSettings:
    recovery = spec.config.recovery
    return ControlSettings(
        plan=spec.plans[0].plan,
        first_step=spec.first_step,
        mode="fast" if recovery.mode == "fast" else "exact",
        settle_ms=recovery.settle_ms,
        answer_ms=recovery.answer_ms,
        enter_ms=min(ENTER_MS, int(250 * spec.config.job.timeout_s)),
        lost_after_ms=recovery.lost_after_ms,
        max_restarts=recovery.max_restarts,
        restart_window_ms=int(1000 * recovery.restart_window_s),
    )


def run_coordinator(spec: CoordinatorSpec, launcher: socket.socket, listener_fd: int) -> int:
    """A coordinator's whole life, on a bound socket."""

    async def live() -> None:
        listener = socket.socket(fileno=listener_fd)
        listener.setblocking(False)
        await CoordinatorServer(spec).run(launcher, listener)

    asyncio.run(live())
    return 0
