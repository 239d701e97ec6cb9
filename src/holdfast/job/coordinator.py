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
from holdfast.control.effects import (
    Decided,
    Effect,
    Fail,
    Finish,
    Kill,
    Leave,
    Record,
    Send,
    Start,
    Stop,
    Void,
)
from holdfast.control.facts import (
    Fact,
    NodeConnected,
    NodeDead,
    NodeLost,
    PlanWanted,
    StopWanted,
    Tick,
    WorkerExited,
    WorkerTold,
)
from holdfast.control.order import Freeze, Order
from holdfast.control.report import Member
from holdfast.control.settings import Settings
from holdfast.control.state import WorkerState
from holdfast.job import messages
from holdfast.job.chronicle import Chronicle
from holdfast.job.connection import Gate, ServerConnection, Strangers, server_tls
from holdfast.job.control_journal import CONTROL, ControlJournal
from holdfast.job.deltas import OrderPacker
from holdfast.job.failures import Failure, describe_exit, root_cause, said
from holdfast.job.ledger import HoldersDiffer
from holdfast.job.messages import (
    Beat,
    EndNode,
    Failed,
    FreezeMessage,
    KillWorker,
    Message,
    NodeState,
    Relayed,
    Settled,
    StartWorker,
    StateMessage,
    ToMember,
    WorkerStarted,
)
from holdfast.job.page import now_ms
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
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of

TICK_S = 0.02
SETTLE_S = 0.1
"""How often agents are told which steps are written down."""
LEAVE_DEADLINE_S = 30.0
BLAME_MS = 1000
"""Where a failure ends the job: how long to look for the cause behind a group that broke."""
GRACE_S = 10.0
"""How much longer than its workers the coordinator waits for any sign of progress."""


class Node:
    """A connected agent."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.last_order = 0


class CoordinatorServer:
    def __init__(self, spec: CoordinatorSpec) -> None:
        run_dir = Path(spec.run_dir)
        self._spec = spec
        self._journal = ControlJournal(run_dir / CONTROL)
        first = spec.plans[0].plan
        self._chronicle = Chronicle(run_dir, first, spec.backend, self._seconds)
        self._machine = Coordinator(settings_of(spec), self._journal.entries)
        self._chronicle.replay(self._journal.entries)
        self._nodes: dict[str, Node] = {}
        self._states: dict[str, WorkerState] = {}
        self._pids: dict[str, int] = {}
        self._packer = OrderPacker()
        self._orders: dict[tuple[str, int], tuple[Order, dict[str, Order]]] = {}
        self._strangers = Strangers(print, time.monotonic)
        self._failures: list[Failure] = []
        self._failed_ms = 0
        self._moved_ms = now_ms()
        self._settled = 0
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
        settled_s = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            self._take(Tick())
            self._give_up_if_due(now_ms())
            settled_s += TICK_S
            if settled_s >= SETTLE_S:
                settled_s = 0.0
                self._settle()

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
        for node in self._nodes.values():
            node.connection.send(EndNode())
            node.connection.close()
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
        if self._ending is not None and self._ending.outcome == "failed":
            return
        self._carry_out(self._machine.take(fact, now_ms()))

    def _hear(self, connection: ServerConnection, message: object) -> None:
        if connection.role == "client":
            self._serve(connection, message)
            return
        try:
            self._hear_agent(connection, message)
        except HoldersDiffer as error:
            self._end("failed", str(error))

    def _hear_agent(self, connection: ServerConnection, message: object) -> None:
        match message:
            case NodeState():
                self._welcome(connection, message)
            case WorkerStarted(member=member, pid=pid):
                self._pids[member.name] = pid
                self._told(WorkerState(member=member))
            case messages.WorkerExited():
                self._exited(message)
            case Relayed(member=member, message=StateMessage(state=state)):
                if state.member == member:
                    self._told(state)
            case Relayed(member=member, message=told):
                self._moved_ms = now_ms()
                if isinstance(told, Failed) and told.is_consequence:
                    self._note_failure(said(member.name, told.line, is_consequence=True))
                self._chronicle.hear(member, told)
            case Beat():
                pass

    def _welcome(self, connection: ServerConnection, state: NodeState) -> None:
        before = self._nodes.get(state.node)
        if before is not None:
            before.connection.hang_up()
        self._nodes[state.node] = Node(connection)
        self._forget(state.node)
        self._states.update((worker.member.name, worker) for worker in state.workers)
        self._pids.update(state.pids)
        self._take(
            NodeConnected(
                node=state.node,
                agent=state.agent,
                places=state.places,
                workers=state.workers,
                kept=state.kept,
            )
        )

    def _forget(self, node: str) -> None:
        for name in [name for name in self._states if node_of(name) == node]:
            del self._states[name]

    def _cut_off(self, connection: ServerConnection, why: str) -> None:
        node = self._nodes.get(connection.name)
        if node is not None and node.connection is connection:
            del self._nodes[connection.name]
            self._take(NodeLost(connection.name, why))

    def _told(self, state: WorkerState) -> None:
        self._moved_ms = now_ms()
        self._states[state.member.name] = state
        if state.broken and self._is_strict:
            self._note_failure(said(state.member.name, state.broken, is_consequence=True))
            return
        self._take(WorkerTold(state))
        self._begin_if_ready()
        self._want_next_plan()

    def _exited(self, message: messages.WorkerExited) -> None:
        member = message.member
        how = describe_exit(message.status, message.last_words)
        if self._states.get(member.name, WorkerState(member=member)).member == member:
            self._states.pop(member.name, None)
        if not self._states:
            self._all_left.set()
        if self._ending is None and self._is_strict:
            self._note_failure(Failure(member.name, how, is_consequence=False))
        elif self._ending is None:
            self._take(WorkerExited(member, how))

    # Giving up.

    @property
    def _is_strict(self) -> bool:
        """A failed worker ends the job."""
        return self._spec.config.recovery.mode == "off"

    def _note_failure(self, failure: Failure) -> None:
        known = [other.worker for other in self._failures if not other.is_consequence]
        if self._is_strict and failure.worker not in known:
            self._failed_ms = self._failed_ms or now_ms()
            self._failures.append(failure)

    def _give_up_if_due(self, now: int) -> None:
        if self._ending is not None:
            return
        only_consequences = all(failure.is_consequence for failure in self._failures)
        if self._failures and (not only_consequences or now - self._failed_ms > BLAME_MS):
            self._fail(root_cause(self._failures))
        patience_s = self._spec.config.job.timeout_s + GRACE_S
        if now - self._moved_ms > 1000 * patience_s:
            step = self._chronicle.ledger.next_step
            self._end(
                "failed",
                f"waited {patience_s:g} s for anybody to get on, in vain, {after_steps(step)}",
            )

    def _fail(self, cause: Failure) -> None:
        step, role = self._chronicle.ledger.next_step, self._role(cause.worker)
        self._chronicle.tell(
            [events.WorkerFailed(worker=cause.worker, role=role, step=step, reason=cause.why)]
        )
        log = Path(self._spec.run_dir) / log_name(cause.worker)
        self._end(
            "failed",
            f"worker {cause.worker} ({role}) {cause.why}, {after_steps(step)}; its log is {log}",
        )

    def _role(self, worker: str) -> str:
        past = self._chronicle.past
        plan = past.plans[past.last.number] if past.last is not None else past.wanted
        return plan.role(worker) if worker in plan.seats else "no role yet"

    def _begin_if_ready(self) -> None:
        last = self._chronicle.past.last
        if self._is_ready or last is None:
            return
        if all(self._epoch_of(name) >= last.number for name in last.incarnations):
            self._is_ready = True
            self._chronicle.ready(dict(self._pids))

    def _epoch_of(self, name: str) -> int:
        state = self._states.get(name)
        return state.epoch if state is not None else 0

    def _want_next_plan(self) -> None:
        """The job file's changes, each as soon as the one before is in force."""
        past = self._chronicle.past
        if past.last is None or past.outstanding is not None or not self._is_ready:
            return
        known = [planned.at_step for planned in self._spec.plans]
        at = known.index(past.wanted_at) if past.wanted_at in known else 0
        if at + 1 >= len(known) or past.plans[past.last.number] != self._spec.plans[at].plan:
            return
        following = self._spec.plans[at + 1]
        reason = f"the job file says so: [[change]] at_step = {following.at_step}"
        self._take(PlanWanted(following.plan, reason, following.at_step))

    def _hear_launcher(self, message: StopAsked | NodeEnded) -> None:
        match message:
            case StopAsked(signal=signal):
                if self._chronicle.past.stop is None:
                    reason = "stopping at the next step boundary; once more to stop at once"
                    self._chronicle.tell([events.StopRequested(signal=signal, reason=reason)])
                    self._take(StopWanted(signal))
            case NodeEnded(node=node, how=how):
                self._forget(node)
                self._take(NodeDead(node, how))

    def _settle(self) -> None:
        if self._chronicle.ledger.next_step > self._settled:
            self._settled = self._chronicle.ledger.next_step
            for node in self._nodes.values():
                node.connection.send(Settled(step=self._settled))

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
        self._send_orders()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(member=member, message=Order() as order):
                self._add_order(member, order)
            case Send(member=member, message=message):
                self._send(member, ToMember(member=member, message=_for_worker(message)))
            case Kill(member=member, reason=reason):
                self._send(member, KillWorker(member=member, reason=reason))
            case Start(member=member):
                self._send(member, StartWorker(member=member))
            case Decided(text=text, details=details):
                self._chronicle.tell([events.Decided(reason=text, details=details)])
            case Finish(version=version):
                self._finish(version)
            case Fail(reason=reason):
                self._end("failed", reason)

    def _send(self, member: Member, message: Message) -> None:
        node = self._nodes.get(node_of(member.name))
        if node is not None:
            node.connection.send(message)

    def _add_order(self, member: Member, order: Order) -> None:
        key = (node_of(member.name), order.number)
        _, shares = self._orders.setdefault(key, (order, {}))
        shares[member.name] = order

    def _send_orders(self) -> None:
        """One message per node."""
        orders, self._orders = self._orders, {}
        for (name, number), (order, shares) in orders.items():
            node = self._nodes.get(name)
            if node is not None:
                own = {worker: mine.share for worker, mine in shares.items()}
                node.connection.send(self._packer.pack(order, own, node.last_order))
                node.last_order = number

    def _finish(self, version: int) -> None:
        steps = self._spec.config.job.steps
        if version >= steps:
            self._end("finished", f"all {steps} steps are done")
        else:
            stop = self._chronicle.past.stop
            self._end("stopped", f"{stop.reason if stop else 'asked for'}, at a step boundary")

    # Clients.

    def _serve(self, connection: ServerConnection, message: object) -> None:
        connection.send(messages.Done(text="not yet", ok=False))


def _for_worker(message: Freeze | Void | Stop | Leave | Order) -> messages.ToWorker:
    match message:
        case Freeze():
            return FreezeMessage(freeze=message)
        case Void(number=number, reason=reason):
            return messages.VoidMessage(number=number, reason=reason)
        case Stop(reason=reason):
            return messages.Stop(reason=reason)
        case Leave():
            return messages.Leave()
        case Order():
            return messages.OrderMessage(order=message)


def _took_over(term: int) -> events.CoordinatorStarted:
    return events.CoordinatorStarted(
        term=term, reason="the one before was lost; this one goes on from its journal"
    )


def settings_of(spec: CoordinatorSpec) -> Settings:
    recovery = spec.config.recovery
    return Settings(
        plan=_first_plan(spec),
        mode="fast" if recovery.mode == "fast" else "exact",
        settle_ms=recovery.settle_ms,
        answer_ms=recovery.answer_ms,
        lost_after_ms=recovery.lost_after_ms,
        max_restarts=recovery.max_restarts + 1,
        restart_window_ms=int(1000 * recovery.restart_window_s),
    )


def _first_plan(spec: CoordinatorSpec) -> Plan:
    return spec.plans[0].plan


def run_coordinator(spec: CoordinatorSpec, launcher: socket.socket, listener_fd: int) -> int:
    """A coordinator's whole life, on a bound socket."""

    async def live() -> None:
        listener = socket.socket(fileno=listener_fd)
        listener.setblocking(False)
        await CoordinatorServer(spec).run(launcher, listener)

    asyncio.run(live())
    return 0
