"""An agent of a job that hosts join: it finds the coordinator at the rendezvous, and starts the
next one on its own host when that is its turn (`control/succession.py` says when).

The coordinator is a process forked beside the workers. It ends with this agent; then it is another
agent's turn.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.control.succession import (
    DEFAULT_SETTINGS,
    PeerAnswers,
    Succession,
    SuccessionSettings,
)
from holdfast.errors import HoldfastError
from holdfast.observe.follow import last_time_s
from holdfast.plan.workers import node_of, parse_worker
from holdfast.runtime.agent.agent import AgentSpec
from holdfast.runtime.launch.exit_status import describe_exit
from holdfast.runtime.launch.fork_server import COORDINATOR, Exited, Forked, Forker, ForkNotice
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec, StartOf
from holdfast.runtime.launch.store import bind
from holdfast.runtime.rendezvous.rendezvous import Rendezvous, Superseded, take_term
from holdfast.runtime.rendezvous.watch import RendezvousView, RendezvousWatch
from holdfast.runtime.wire.connection import open_connection
from holdfast.runtime.wire.frames import BY_PEER, pack
from holdfast.runtime.wire.host_messages import Peer, ReachAsked, ReachTold
from holdfast.runtime.wire.secret import ClientProof, ProofFailed
from holdfast.runtime.wire.tls import client_tls
from holdfast.runtime.worker.progress_page import now_ms

_LOG = logging.getLogger(__name__)

LOOK_S = 0.1
ASK_S = 0.6
MAX_ASKED = 16
"""Agents of other nodes, the lowest ones: some answers are enough."""
BEGIN_S = 10.0
LEAVE_S = 5.0


class SucceedingFinder:
    """(CoordinatorFinder)"""

    unheard_ms = 2000
    """A successor is to be there within five seconds of a host that is gone."""
    connect_s = 1.5

    def __init__(
        self,
        spec: AgentSpec,
        forker: Forker,
        rendezvous: Rendezvous,
        job: CoordinatorSpec,
        settings: SuccessionSettings = DEFAULT_SETTINGS,
    ) -> None:
        """`job`: all that a coordinator of the run needs to know, but for the secret."""
        self._spec, self._forker, self._job = spec, forker, job
        nodes = {node_of(worker) for worker in Job(job.config, job.plans, ()).workers}
        number, _ = parse_worker(spec.places[0])
        self._succession = Succession(number, len(nodes), now_ms(), settings)
        self._rendezvous, self._watch = rendezvous, RendezvousWatch(rendezvous, self._saw)
        self._peers: dict[str, Peer] = {}
        self._child: _HostedCoordinator | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = ""

    def start(self, hang_up: Callable[[str], object], end: Callable[[], object]) -> None:
        self._hang_up, self._end = hang_up, end
        self._watch.start()
        self._task = asyncio.create_task(self._keep_looking())

    # What is seen.

    def _saw(self, view: RendezvousView) -> None:
        newest = view.newest
        if view.trouble or newest is None:
            return
        if newest.run != self._job.run or view.outcome:
            self._end()
        elif self._succession.saw_term(newest.term, now_ms()):
            self._hang_up(f"term {newest.term} was taken")

    def address(self) -> tuple[str, int] | None:
        newest = self._watch.view.newest
        return None if newest is None else (newest.host, newest.port)

    def connected(self, term: int) -> bool:
        return self._succession.reached(term)

    def lost(self) -> None:
        self._succession.missed(now_ms())
        self._watch.look_soon()

    def doubted(self, is_in_doubt: bool) -> None:
        if is_in_doubt:
            self._succession.missed(now_ms())
        else:
            self._succession.reached(self._succession.term)

    def learn(self, peers: Mapping[str, Peer]) -> None:
        self._peers.update(peers)

    def reach(self) -> ReachTold:
        return ReachTold(is_reached=self._succession.is_reached, term=self._succession.term)

    # Taking over.

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._succession.is_due(now_ms()) and not self._watch.view.trouble:
                await self._take_over_if_right()

    async def _take_over_if_right(self) -> None:
        verdict = self._succession.judge(await self._ask_others(), now_ms())
        if verdict.reason.partition(" for ")[0] != self._told or verdict.takes:
            self._told = verdict.reason.partition(" for ")[0]
            _LOG.warning("%s: %s", "taking over" if verdict.takes else "waiting", verdict.reason)
        if not verdict.takes:
            return
        self._succession.tried(now_ms())
        if self._child is not None:
            self._child.kill()
        try:
            await self._start_coordinator()
        except Superseded as error:
            _LOG.warning("no coordinator is needed here: %s", error)
        except (HoldfastError, OSError, TimeoutError) as error:
            _LOG.warning("no coordinator can be started here: %r", error)

    async def _ask_others(self) -> PeerAnswers:
        nodes = [node for node in sorted(self._peers, key=_number) if node != self._spec.node]
        asked = (self._ask(self._peers[node]) for node in nodes[:MAX_ASKED])
        told = [answer for answer in await asyncio.gather(*asked) if answer is not None]
        reaching = [t for t in told if t.is_reached and self._succession.is_current(t.term)]
        return PeerAnswers(
            num_heard=len(told),
            num_reaching=len(reaching),
            num_by_coordinator=self._watch.num_nodes_heard,
        )

    async def _ask(self, peer: Peer) -> ReachTold | None:
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def take(found: object) -> None:
            if not answer.done():
                answer.set_result(found)

        proof = ClientProof(self._spec.secret, "worker", self._spec.node)
        tls = client_tls(self._spec.tls)
        try:
            async with asyncio.timeout(ASK_S):
                connection, _ = await open_connection(
                    *(peer.host, peer.port, proof, BY_PEER),
                    tls=tls,
                    on_message=take,
                    on_lost=take,
                )
                connection.send(ReachAsked())
                found = await answer
                connection.close()
        except (OSError, TimeoutError, ProofFailed):
            return None
        return found if isinstance(found, ReachTold) else None

    async def _start_coordinator(self) -> None:
        folder = Path(self._job.run_dir)
        if not folder.is_dir():
            raise HoldfastError(f"{folder}, the run directory, is not there on this host")
        with bind(self._spec.serves, 0) as listener:
            job = await asyncio.get_running_loop().run_in_executor(
                None, self._take_term, listener.getsockname()[1]
            )
            log = Path(self._spec.log_dir) / f"{COORDINATOR}.log"
            self._child = _HostedCoordinator(self._forker, listener, log)
        await self._child.begin(job)

    def _take_term(self, port: int) -> CoordinatorSpec:
        """Before the process is there: the other agents wait for it then. In a thread."""
        host, run = self._spec.serves, self._job.run
        taken = take_term(self._rendezvous, self._succession.term, run=run, host=host, port=port)
        last_s = last_time_s(Path(self._job.run_dir))
        return msgspec.structs.replace(
            self._job,
            secret=self._spec.secret,
            clock=self._job.clock.on_this_host(last_s),
            term=taken.term,
        )

    def handle_fork_notice(self, notice: ForkNotice) -> bool:
        child = self._child
        if child is None or not child.take(notice):
            return False
        if child.has_ended:
            self._child = None
        return True

    async def close(self, *, is_job_over: bool) -> None:
        """At the end of a job, a coordinator of this host may still have to tell the others."""
        self._watch.stop()
        if self._task is not None:
            self._task.cancel()
        if self._child is not None:
            if is_job_over:
                await self._child.wait(LEAVE_S)
            self._child.kill()


def _number(node: str) -> int:
    return int(node.removeprefix("n"))


class _HostedCoordinator:
    """A coordinator as a child of this host's fork server."""

    def __init__(self, forker: Forker, listener: socket.socket, log: Path) -> None:
        self._pid = 0
        self.has_ended = False
        self._gone = asyncio.Event()
        ours, theirs = socket.socketpair()
        with theirs:
            self._ticket = forker.fork(theirs, log, listener.fileno(), role=COORDINATOR)
        ours.setblocking(False)
        self._socket = ours

    async def begin(self, job: CoordinatorSpec) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(BEGIN_S):
            await loop.sock_sendall(self._socket, pack(StartOf(spec=job)))
        if self._socket.fileno() >= 0:
            loop.add_reader(self._socket, self._drain)

    def _drain(self) -> None:
        """What it says is for a launcher, which reads it in the run directory."""
        with suppress(BlockingIOError):
            try:
                data = self._socket.recv(2**16)
            except ConnectionError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._socket)
                self._gone.set()

    def take(self, notice: ForkNotice) -> bool:
        match notice:
            case Forked(ticket=ticket, pid=pid) if ticket == self._ticket:
                self._pid = pid
                _LOG.warning("started a coordinator, process %d", pid)
                return True
            case Exited(ticket=ticket, status=status) if ticket == self._ticket:
                _LOG.warning("the coordinator of this host %s", describe_exit(status))
                self.has_ended = True
                self._close()
                return True
        return False

    def kill(self) -> None:
        if self._pid and not self.has_ended:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
        self._gone.set()

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
