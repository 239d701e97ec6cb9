"""The coordinator process: carries facts to the machine that decides, and its effects out.

All decisions are in `control/`; here are sockets, files and clocks. What the machine wants recorded
is on disk before anything that follows is sent. Agents connect and say everything they know, so a
coordinator that was started again goes on from its journal and from them; meanwhile the workers
train.

The process ends when the job does, or with the launcher, which starts another if this one is lost.
"""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Decided, Effect, Fail, Finish, Kill, Record, Send, Start
from holdfast.control.facts import (
    Fact,
    NodeConnected,
    NodeDead,
    NodeLost,
    PlanWanted,
    StopWanted,
    Tick,
    WorkerExited,
    WorkerHung,
    WorkerTold,
)
from holdfast.control.settings import Settings
from holdfast.control.state import WorkerState
from holdfast.engine.arena_plan import node_job
from holdfast.job import messages
from holdfast.job.arenas import reachable, snapshot_options
from holdfast.job.chronicle import Chronicle
from holdfast.job.connection import Gate, ServerConnection, Strangers, server_tls
from holdfast.job.control_journal import CONTROL, ControlJournal
from holdfast.job.dispatch import Dispatch
from holdfast.job.failures import Failure, describe_exit, said
from holdfast.job.front_desk import FrontDesk
from holdfast.job.giving_up import GivingUp
from holdfast.job.hangs import HangWatch
from holdfast.job.kept import KeptBoard
from holdfast.job.ledger import HoldersDiffer
from holdfast.job.messages import (
    Beat,
    EndNode,
    Failed,
    Keeps,
    KillWorker,
    NodeState,
    Persisted,
    Relayed,
    Settled,
    StartWorker,
    StateMessage,
    WorkerStarted,
)
from holdfast.job.page import now_ms
from holdfast.job.snapshot_desk import SnapshotDesk
from holdfast.job.supervision import (
    CoordinatorSpec,
    Ending,
    LauncherLink,
    NodeEnded,
    StopAsked,
    Wrote,
)
from holdfast.job.wire import FROM_AGENT, FROM_CLIENT, Reader
from holdfast.observe import events
from holdfast.observe.progress import after_steps
from holdfast.observe.run_directory import log_name
from holdfast.plan.workers import node_of

TICK_S = 0.05
TICKS_PER_LOOK = 2
"""How often agents are told what is written down, and hangs and faults are looked for."""
LEAVE_DEADLINE_S = 30.0
GRACE_S = 10.0
"""How much longer than its workers the coordinator waits for any sign of progress."""


class CoordinatorServer:
    def __init__(self, spec: CoordinatorSpec) -> None:
        run_dir, config = Path(spec.run_dir), spec.config
        self._spec = spec
        self._journal = ControlJournal(run_dir / CONTROL)
        first = spec.plans[0].plan
        self._chronicle = Chronicle(run_dir, first, spec.backend, self._seconds, spec.first_step)
        self._machine = Coordinator(settings_of(spec), self._journal.entries)
        self._chronicle.replay(self._journal.entries)
        self._dispatch = Dispatch()
        self._snapshots = SnapshotDesk(
            KeptBoard(snapshot_options(config, spec.memory, "")) if spec.memory else None,
            self._chronicle.past,
            self._dispatch,
            take=self._take,
            tell=self._chronicle.tell,
            reach=lambda node: reachable(node_job(spec.memory, node)),
            persists=config.snapshot.persists,
        )
        self._states: dict[str, WorkerState] = {}
        self._strangers = Strangers(lambda line: print(line, flush=True), time.monotonic)
        recovery = config.recovery
        self._watch = HangWatch(
            recovery.heartbeat_ms, recovery.hang_floor_ms, recovery.hang_multiple
        )
        self._watched = 0
        """The epoch it watches; 0 = none."""
        self._heard_ms: dict[str, int] = {}
        """When each node last said anything."""
        self._giving_up = GivingUp(
            is_strict=recovery.mode == "off",
            patience_ms=int(1000 * (config.job.timeout_s + GRACE_S)),
            now_ms=now_ms(),
        )
        self._desk = FrontDesk(
            spec, self._chronicle, self._dispatch, self._strangers, self._states, now_ms()
        )
        self._last_words = ""
        """Of the last worker that said why it ended."""
        self._settled = 0
        self._considered = 0
        """The epoch for which the next plan was looked for."""
        self._is_ready = bool(self._journal.entries)
        self._ending: Ending | None = None
        self._ended = asyncio.Event()
        self._all_left = asyncio.Event()
        self._link = LauncherLink(self._hear_launcher, self._ended.set)

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
            self._hear,
            self._cut_off,
        )
        job = self._spec.config.job
        server = await loop.create_server(
            lambda: ServerConnection(gate), sock=listener, ssl=server_tls(job.tls_cert, job.tls_key)
        )
        ticking = asyncio.create_task(self._tick())
        await self._ended.wait()
        ticking.cancel()
        server.close()
        await self._say_good_bye()

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            self._take(Tick())
            self._begin_if_ready()
            self._want_next_plan()
            self._watch_if_all_train()
            self._give_up_if_due()
            ticks += 1
            if ticks % TICKS_PER_LOOK == 0:
                self._settle()
                self._look_for_hangs()
                self._desk.inject_due(now_ms())

    async def _say_good_bye(self) -> None:
        """Everybody who is done leaves by itself; whoever does not goes with its agent."""
        if self._ending is None:
            return
        if self._ending.outcome != "failed" and self._states:
            try:
                async with asyncio.timeout(LEAVE_DEADLINE_S):
                    await self._all_left.wait()
            except TimeoutError:
                print(f"still there: {', '.join(self._states)}", flush=True)
        self._dispatch.to_all(EndNode())
        self._dispatch.close()
        self._link.send(self._ending)
        self._link.close()
        await asyncio.sleep(0.01)

    def _end(self, outcome: str, reason: str) -> None:
        if self._ending is not None:
            return
        finished = list(self._chronicle.finished.values())
        self._ending = Ending(
            outcome=outcome,
            reason=reason,
            staging_bytes=max((told.staging_bytes for told in finished), default=0),
            final_bytes=sum(told.final_bytes for told in finished),
            profile=self._chronicle.profile(),
        )
        self._ended.set()

    # Facts.

    def _take(self, fact: Fact) -> None:
        if self._ending is None or self._ending.outcome != "failed":
            self._carry_out(self._machine.take(fact, now_ms()))

    def _hear(self, connection: ServerConnection, message: Any) -> None:
        if connection.role == "client":
            connection.send(self._desk.serve(message))
            return
        try:
            self._hear_agent(connection, message)
        except HoldersDiffer as error:
            self._end("failed", str(error))

    def _hear_agent(self, connection: ServerConnection, message: object) -> None:
        self._heard_ms[connection.name] = now_ms()
        match message:
            case NodeState():
                self._welcome(connection, message)
            case WorkerStarted(member=member, pid=pid):
                self._desk.pids[member.name] = pid
                self._told(WorkerState(member=member))
            case messages.WorkerExited():
                self._exited(message)
            case Relayed(member=member, message=StateMessage(state=state)):
                if state.member == member:
                    self._told(state)
            case Relayed():
                self._note(message)
            case Keeps(arenas=arenas):
                self._snapshots.hear(connection.name, arenas)
            case Persisted():
                self._snapshots.written(message)
            case Beat(sent_ms=sent_ms, places=places):
                self._desk.places.update(places)
                self._watch.beat(places, sent_ms, now_ms())

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

    def _forget(self, node: str) -> None:
        for name in [name for name in self._states if node_of(name) == node]:
            del self._states[name]
            self._watch.gone(name)

    def _cut_off(self, connection: ServerConnection, why: str) -> None:
        if self._dispatch.disconnect(connection.name, connection):
            self._snapshots.lose(connection.name)
            self._stop_watching()
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
        if self._watched and not _trains(state, self._watched):
            self._stop_watching()

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
            if step.epoch == self._watched:
                self._watch.stepped(step.step_time_s, now_ms())

    def _exited(self, message: messages.WorkerExited) -> None:
        member = message.member
        how = describe_exit(message.status, message.last_words)
        if message.last_words:
            self._last_words = f"; {member.name} {how}"
        known = self._states.get(member.name)
        if known is not None and known.member == member:
            del self._states[member.name]
            self._watch.gone(member.name)
        if not self._states:
            self._all_left.set()
        if self._ending is not None:
            return
        if self._giving_up.is_strict:
            self._giving_up.failed(Failure(member.name, how, is_consequence=False), now_ms())
        else:
            self._take(WorkerExited(member, how))

    def _hear_launcher(self, message: StopAsked | NodeEnded) -> None:
        match message:
            case StopAsked(signal=name) if self._chronicle.past.stop is None:
                reason = "stopping at the next step boundary; once more to stop at once"
                self._chronicle.tell([events.StopRequested(signal=name, reason=reason)])
                self._take(StopWanted(name))
            case NodeEnded(node=node, how=how):
                self._forget(node)
                self._snapshots.lose(node)
                self._take(NodeDead(node, how))

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
        """The job file's changes, each as soon as the one before is in force."""
        past = self._chronicle.past
        if past.last is None or past.outstanding is not None or not self._is_ready:
            return
        if past.last.number == self._considered:
            return
        self._considered = past.last.number
        known = [planned.at_step for planned in self._spec.plans]
        at = known.index(past.wanted_at) if past.wanted_at in known else 0
        if at + 1 >= len(known) or past.plans[past.last.number] != self._spec.plans[at].plan:
            return
        following = self._spec.plans[at + 1]
        reason = f"the job file says so: [[change]] at_step = {following.at_step}"
        self._take(PlanWanted(following.plan, reason, following.at_step))

    def _stop_watching(self) -> None:
        self._watched = 0
        self._watch.suspend()

    def _watch_if_all_train(self) -> None:
        """Hangs are looked for while everybody of the last order is in it, well, and heard of: who
        is cut off may get on without our knowing.
        """
        past = self._chronicle.past
        last = past.last
        if last is None or self._watched == last.number or self._silent_nodes():
            return
        nodes = self._dispatch.nodes
        if all(
            (state := self._states.get(name)) is not None
            and _trains(state, last.number)
            and node_of(name) in nodes
            for name in last.incarnations
        ):
            self._watched = last.number
            self._watch.begin(past.plans[last.number], now_ms())

    def _silent_nodes(self) -> list[str]:
        """Connected, and yet without a beat for many intervals."""
        patience_ms = max(1000, 10 * self._spec.config.recovery.heartbeat_ms)
        now = now_ms()
        return [n for n in self._dispatch.nodes if now - self._heard_ms.get(n, now) > patience_ms]

    def _look_for_hangs(self) -> None:
        silent = self._silent_nodes()
        if silent:
            self._stop_watching()
        lost_ms = now_ms() - self._spec.config.recovery.lost_after_ms
        for node in silent:
            if self._heard_ms[node] < lost_ms:
                self._dispatch.hang_up(node)
        for hang in self._watch.check(now_ms()):
            state = self._states.get(hang.worker)
            self._watch.gone(hang.worker)
            if state is None:
                continue
            if self._giving_up.is_strict:
                failure = Failure(hang.worker, f"hangs: {hang.reason}", is_consequence=False)
                self._giving_up.failed(failure, now_ms())
            else:
                self._take(WorkerHung(state.member, hang.reason))

    def _settle(self) -> None:
        if self._chronicle.ledger.next_step > self._settled:
            self._settled = self._chronicle.ledger.next_step
            self._dispatch.to_all(Settled(step=self._settled))

    def _give_up_if_due(self) -> None:
        now, step = now_ms(), self._chronicle.ledger.next_step
        cause = self._giving_up.cause(now)
        if cause is not None and self._ending is None:
            self._fail(cause, step)
        elif self._giving_up.is_stuck(now):
            self._end("failed", f"nobody has got on for a long time, {after_steps(step)}")

    def _fail(self, cause: Failure, step: int) -> None:
        past = self._chronicle.past
        plan = past.plans[past.last.number] if past.last is not None else past.wanted
        role = plan.role(cause.worker) if cause.worker in plan.seats else "no role yet"
        self._chronicle.tell(
            [events.WorkerFailed(worker=cause.worker, role=role, step=step, reason=cause.why)]
        )
        log = Path(self._spec.run_dir) / log_name(cause.worker)
        self._end(
            "failed",
            f"worker {cause.worker} ({role}) {cause.why}, {after_steps(step)}; its log is {log}",
        )

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
            case Decided(text=text, details=details):
                self._chronicle.tell([events.Decided(reason=text, details=details)])
            case Finish(version=version):
                self._finish(version)
            case Fail(reason=reason):
                self._end("failed", reason + self._last_words)

    def _finish(self, version: int) -> None:
        steps, stop = self._spec.config.job.steps, self._chronicle.past.stop
        reason = f"all {steps} steps are done"
        outcome = "finished"
        if version < steps:
            reason = f"{stop.reason if stop else 'asked for'}, at a step boundary"
            outcome = "stopped"
        self._snapshots.persist_last(reason, lambda: self._end(outcome, reason))


def _trains(state: WorkerState, epoch: int) -> bool:
    return state.epoch == epoch and not (state.is_frozen or state.broken or state.is_done)


def _took_over(term: int) -> events.CoordinatorStarted:
    return events.CoordinatorStarted(
        term=term, reason="the one before was lost; this one goes on from its journal"
    )


def settings_of(spec: CoordinatorSpec) -> Settings:
    recovery = spec.config.recovery
    return Settings(
        plan=spec.plans[0].plan,
        first_step=spec.first_step,
        mode="fast" if recovery.mode == "fast" else "exact",
        settle_ms=recovery.settle_ms,
        answer_ms=recovery.answer_ms,
        lost_after_ms=recovery.lost_after_ms,
        max_restarts=recovery.max_restarts + 1,
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
