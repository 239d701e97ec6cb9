"""Hosts that join a job: each becomes a node, and is told all that its agent needs.

Who is which node is kept at the rendezvous, so that a successor of this coordinator knows it, too.
"""

import logging
from collections.abc import Callable, Collection

import msgspec

from holdfast.control.message import Message
from holdfast.control.seating import seat_host
from holdfast.plan.workers import node_of
from holdfast.runtime.rendezvous.rendezvous import NODES, NodeClaim, Rendezvous
from holdfast.runtime.wire.host_messages import JoinRefused, JoinRequest
from holdfast.runtime.wire.messages import Assignment, NodeGrant

_LOG = logging.getLogger(__name__)

START_MS = 60_000
"""How long a host may take from its grant to its agent's first message."""


class HostJoins:
    def __init__(
        self,
        rendezvous: Rendezvous,
        workers: Collection[str],
        heartbeat_ms: int,
        template: Assignment,
        tell: Callable[[str], object],
    ) -> None:
        """`tell`: the user, which host is which node."""
        self._rendezvous, self._tell = rendezvous, tell
        self._heartbeat_ms, self._template = heartbeat_ms, template
        self.nodes: dict[str, tuple[str, ...]] = {}
        for worker in workers:
            node = node_of(worker)
            self.nodes[node] = (*self.nodes.get(node, ()), worker)
        self._records = rendezvous.records(NODES)
        claims = [msgspec.json.decode(record, type=NodeClaim) for record in self._records]
        self._claims = {claim.node: claim.host for claim in claims}
        self._granted_ms: dict[str, int] = {}

    @property
    def missing(self) -> list[str]:
        """Nodes that no host has asked for since this coordinator began."""
        return [node for node in self.nodes if node not in self._granted_ms]

    def answer(self, request: JoinRequest, taken: Collection[str], now_ms: int) -> Message:
        """`taken`: nodes that are connected, or were a moment ago."""
        starting = [node for node, at in self._granted_ms.items() if now_ms - at < START_MS]
        found = seat_host(
            request.host,
            request.node,
            nodes=list(self.nodes),
            claims=self._claims,
            taken={*taken, *(node for node in starting if self._claims[node] != request.host)},
        )
        if not found.node:
            return JoinRefused(reason=found.reason, is_final=found.is_final)
        if self._claims.get(found.node) != request.host:
            self._claim(NodeClaim(node=found.node, host=request.host))
        self._granted_ms[found.node] = now_ms
        self._tell(f"{found.reason}, at {request.address}")
        return self._grant(found.node, request)

    def connected(self, node: str) -> None:
        """Its agent is there: from now on the connection says whether the node is taken."""
        self._granted_ms[node] = -START_MS

    def _claim(self, claim: NodeClaim) -> None:
        record = msgspec.json.encode(claim)
        if not self._rendezvous.append(NODES, len(self._records) + 1, record):
            raise ConnectionAbortedError("another coordinator gives nodes to hosts: this one ends")
        self._records.append(record)
        self._claims[claim.node] = claim.host

    def _grant(self, node: str, request: JoinRequest) -> NodeGrant:
        config = self._template.config
        job = msgspec.structs.replace(config.job, host=request.address)
        places = self.nodes[node]
        return NodeGrant(
            node=node,
            places=places,
            heartbeat_ms=self._heartbeat_ms,
            assignment=msgspec.structs.replace(
                self._template,
                config=msgspec.structs.replace(config, job=job),
                num_threads=config.job.threads or max(1, request.num_cores // len(places)),
                num_workers_here=len(places),
            ),
        )
