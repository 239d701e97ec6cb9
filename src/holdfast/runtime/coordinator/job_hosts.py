"""The coordinator's part of a job that hosts join: it takes a term, gathers hosts, and gives up
when it has been replaced.

    term       taken at the rendezvous when the process begins, by a compare-and-swap. Then the
               journal there is fenced, and read
    gather     the first coordinator of a run waits for a host per node, or, once there are
               `net.min_nodes`, a while longer for the others, and begins without them. Agents of
               hosts that joined under the one before are sent away, and counted
    keep       again and again it looks whether there is a higher term: then it ends. While it does
               not see the rendezvous, nothing it decides is carried out; if that lasts, it says so
               to the agents, so that one of them that does see it starts a successor
    end        it writes the end of the run, since the launcher may be gone
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from holdfast.control.facts import NodeConnected, NodeDead
from holdfast.control.message import Message
from holdfast.observe import events
from holdfast.observe.run_directory import ADDRESS, RunDirectory
from holdfast.runtime.coordinator.control_journal import CONTROL
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.joining import HostJoins
from holdfast.runtime.coordinator.rendezvous_journal import RendezvousJournal
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec, Ending
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.rendezvous.rendezvous import (
    ALIVE,
    RunEnd,
    SignOfLife,
    Superseded,
    announce_end,
    open_rendezvous,
    take_term,
)
from holdfast.runtime.rendezvous.watch import RendezvousWatch
from holdfast.runtime.wire.connection import ServerConnection, is_refused
from holdfast.runtime.wire.host_messages import JoinRequest, Peers, Serving, TermInDoubt

_LOG = logging.getLogger(__name__)

PROBE_S = 1.0
LIFE_S = 1.0
"""Between two signs of life."""
HEARD_S = 1.0
"""A node that says nothing for so long is not heard: a connection takes longer to notice a cut."""
KEEP_S = 0.25
"""How often it looks at what the watch has seen."""
DOUBT_S = 1.5
"""So long without the rendezvous, and the agents are told."""
SAY_AGAIN_S = 1.0


class JobHosts:
    def __init__(self, spec: CoordinatorSpec, address: tuple[str, int]) -> None:
        """Superseded where another coordinator has come first; OSError where the rendezvous cannot
        be reached.
        """
        self._spec = spec
        self._rendezvous = open_rendezvous(spec.config.net.rendezvous)
        host, port = address
        self.term = spec.term or self._take_term(host, port)
        self.journal = RendezvousJournal(self._rendezvous, self.term, Path(spec.run_dir) / CONTROL)
        RunDirectory(Path(spec.run_dir)).write(ADDRESS, f"{host}:{port}\n")
        _LOG.info("term %d of run %d, at %s:%d", self.term, spec.run, host, port)
        self._watch = RendezvousWatch(self._rendezvous, lambda view: None)
        self._is_in_doubt = False
        self._shown_s, self._num_signs = 0.0, 0
        self._has_enough, self._has_gathered = asyncio.Event(), asyncio.Event()
        self._heard: dict[str, float] = {}
        self._heartbeat_s = spec.config.recovery.heartbeat_ms / 1000
        self._greeted: dict[str, None] = {}
        """Nodes whose agents have come while hosts still gathered."""
        self._peers: dict[str, Serving] = {}

    def _take_term(self, host: str, port: int) -> int:
        spec = self._spec
        return take_term(self._rendezvous, spec.after_term, run=spec.run, host=host, port=port).term

    def serve(
        self,
        dispatch: Dispatch,
        run_log: RunLog,
        take: Callable[[NodeDead], object],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Before anything else: what it works with. `start`: a task of the coordinator."""
        self._dispatch, self._run_log, self._take, self._start = dispatch, run_log, take, start
        spec = self._spec
        assert spec.assignment is not None
        self.joining = HostJoins(
            self._rendezvous,
            Job(spec.config, spec.plans, ()).workers,
            spec.config.recovery.heartbeat_ms,
            spec.assignment,
            lambda text: run_log.tell([events.HostJoined(reason=text)]),
        )

    # The term.

    async def keep_term(self, end: Callable[[Exception | None], object]) -> None:
        self._watch.start()
        loop = asyncio.get_running_loop()
        seen_s = loop.time()
        while True:
            view = self._watch.view
            trouble = view.trouble
            self.journal.out_of_reach = trouble and f"the rendezvous is out of reach: {trouble}"
            if superseded := self._superseded():
                end(superseded)
            elif view.outcome:
                _LOG.warning("the run is over, as the rendezvous says: %s", view.outcome)
                end(None)
            if not view.trouble:
                seen_s = loop.time()
            await self._show_life(loop)
            self._doubt(is_in_doubt=loop.time() - seen_s >= DOUBT_S, why=view.trouble)
            await asyncio.sleep(KEEP_S)

    async def _show_life(self, loop: asyncio.AbstractEventLoop) -> None:
        """At the rendezvous: an agent that cannot reach this coordinator sees that others do."""
        if self._watch.view.trouble or loop.time() - self._shown_s < LIFE_S:
            return
        self._shown_s, self._num_signs = loop.time(), self._num_signs + 1
        now, within_s = loop.time(), max(HEARD_S, 5 * self._heartbeat_s)
        num_nodes = sum(now - heard < within_s for heard in self._heard.values())
        life = SignOfLife(term=self.term, count=self._num_signs, num_nodes=num_nodes)
        with suppress(OSError):
            self._rendezvous.put(ALIVE, msgspec.json.encode(life))

    def heard(self, node: str) -> None:
        """Its agent has said something."""
        self._heard[node] = asyncio.get_running_loop().time()

    def _superseded(self) -> Superseded | None:
        newest = self._watch.view.newest
        if newest is None or newest.term <= self.term:
            return None
        return Superseded(f"term {newest.term} was taken, this one has {self.term}")

    def _doubt(self, *, is_in_doubt: bool, why: str) -> None:
        if is_in_doubt == self._is_in_doubt:
            return
        self._is_in_doubt = is_in_doubt
        _LOG.warning("the rendezvous is %s", f"out of reach: {why}" if is_in_doubt else "back")
        self._dispatch.to_all(TermInDoubt(is_in_doubt=is_in_doubt))

    # Joining.

    async def gather(self, ended: asyncio.Event) -> str:
        """Until hosts have joined for all nodes, or for enough of them; or the job ends before it
        has begun. What is missing, if that takes too long.
        """
        net = self._spec.config.net
        await _wait_for_either(self._has_enough, ended, net.gather_within_s)
        if self._has_enough.is_set():
            await _wait_for_either(self._has_gathered, ended, net.last_call_s)
        self._greeted.clear()  # from now on the connections say who is there
        if self._has_enough.is_set() or ended.is_set():
            self._tell_missing()
            return ""
        few = f", and {net.min_nodes} are needed" if net.min_nodes else ""
        return (
            f"waited {net.gather_within_s:g} s for hosts{few}, and none has joined for "
            f"{', '.join(self.joining.missing)}; on each of them: holdfast agent --join "
            f"{net.rendezvous}"
        )

    def _tell_missing(self) -> None:
        net, missing = self._spec.config.net, self.joining.missing
        if missing:
            reason = (
                f"the job begins without {', '.join(missing)}: no host has joined for them within "
                f"{net.last_call_s:g} s (net.last_call_s) of the first {net.min_nodes}"
            )
            details = {"nodes": " ".join(missing)}
            self._run_log.tell([events.Decided(reason=reason, details=details)])

    def join(self, request: JoinRequest, present: Collection[str], now_ms: int) -> Message:
        reply = self.joining.answer(request, {*present, *self._greeted}, now_ms)
        self._look_if_gathered()
        return reply

    def greet(self, connection: ServerConnection, message: Any) -> None:
        """An agent, while hosts still gather: it is a node, and may come again in a moment."""
        if isinstance(message, NodeConnected):
            self.joining.connected(message.node)
            self._greeted[message.node] = None
            connection.hang_up()
            self._look_if_gathered()

    def _look_if_gathered(self) -> None:
        num_missing, num_nodes = len(self.joining.missing), len(self.joining.nodes)
        if num_nodes - num_missing >= (self._spec.config.net.min_nodes or num_nodes):
            self._has_enough.set()
        if not num_missing:
            self._has_gathered.set()

    def introduce(self, serving: Serving) -> None:
        """Agents learn where the others are before any order makes them look for each other."""
        self._peers[serving.node] = serving
        self._dispatch.to_all(Peers(addresses={serving.node: serving.peer}))

    def tell_peers(self, connection: ServerConnection) -> None:
        """Where all agents are, to one that is connected, and not as soon as it has said where it
        is itself: of one that comes in between it would never be told.
        """
        connection.send(Peers(addresses={node: s.peer for node, s in self._peers.items()}))
        if self._is_in_doubt:
            connection.send(TermInDoubt(is_in_doubt=True))

    # Nodes that cannot be reached.

    def probe(self, node: str) -> None:
        serving = self._peers.get(node)
        if serving is not None:
            self._start(self._probe(serving))

    async def _probe(self, serving: Serving) -> None:
        """Is its agent dead, or cut off? A host that refuses the connection says that no process of
        that agent is left, for its workers die with it; a host that says nothing proves nothing.
        """
        loop = asyncio.get_running_loop()
        while self._is_away(serving):
            is_dead = await is_refused(loop, serving.peer.host, serving.peer.port)
            if is_dead and self._is_away(serving):
                how = f"the agent of {serving.node} has ended"
                # Another host may take its place, or this one is back with another agent.
                self._take(NodeDead(serving.node, how, will_return=True, agent=serving.agent))
                return
            await asyncio.sleep(PROBE_S)

    def _is_away(self, serving: Serving) -> bool:
        """It has not come back, and no other agent of its node has come."""
        return serving.node not in self._dispatch.nodes and self._peers[serving.node] == serving

    # The end.

    async def write_end(self, ending: Ending) -> None:
        """Once it is said at the rendezvous, no process goes on with the run: so that comes last,
        and as often as it takes.
        """
        spec = self._spec
        keep_final = spec.config.job.keep_final
        self._run_log.end(ending, first_step=spec.first_step, keep_final=keep_final)
        while True:
            if trouble := self._superseded():
                raise trouble
            try:
                announce_end(self._rendezvous, RunEnd(run=spec.run, outcome=ending.outcome))
                break
            except OSError as error:
                _LOG.warning("the end cannot be said at the rendezvous: %s", error)
            await asyncio.sleep(SAY_AGAIN_S)
        self.close()

    def close(self) -> None:
        self._watch.stop()


async def _wait_for_either(event: asyncio.Event, ended: asyncio.Event, within_s: float) -> None:
    waits = [asyncio.create_task(one.wait()) for one in (event, ended)]
    await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
