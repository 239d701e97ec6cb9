"""The keys through which a group's members find each other, kept by the agent of the first one's
node: torch's interface of a store on our own, authenticated connections.

With several hosts there is no process that all of them could not do without, and no socket that
anyone may write to; torch's TCPStore is both.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from torch.distributed.distributed_c10d import Store

from holdfast.control.message import Message
from holdfast.plan.workers import node_of
from holdfast.runtime.wire.host_messages import (
    KeyDone,
    KeySet,
    KeysWanted,
    KeyValues,
    Peer,
    PeerAccess,
)
from holdfast.runtime.wire.peer_client import PeerClient, PeerGone
from holdfast.runtime.wire.tls import client_tls

T = TypeVar("T", bound=Message)


class PeerDirectory:
    """Where the agents of all nodes are; they move when they are started again."""

    def __init__(self, access: PeerAccess, name: str = "") -> None:
        """`name`: of the worker, if it is one."""
        self._access, self._peers = access, dict(access.peers)
        self._name, self._tls = name or access.node, client_tls(access.tls)
        self._changed = threading.Condition()

    def others(self) -> list[str]:
        """The other nodes, as far as they are known."""
        with self._changed:
            return [node for node in self._peers if node != self._access.node]

    def learn(self, peers: Mapping[str, Peer]) -> None:
        with self._changed:
            self._peers.update(peers)
            self._changed.notify_all()

    def connect(self, node: str, within_s: float) -> PeerClient:
        """PeerGone if it cannot be had."""
        with self._changed:
            if not self._changed.wait_for(lambda: node in self._peers, within_s):
                raise PeerGone(f"where the agent of {node} is was not said within {within_s:g} s")
            peer = self._peers[node]
        return PeerClient(peer, self._access.secret, self._name, self._tls)


class GroupStores:
    """(StoreOfGroups) One store per group."""

    def __init__(self, peers: PeerDirectory, timeout_s: float) -> None:
        self._peers, self._timeout_s = peers, timeout_s

    def of_group(self, members: Sequence[str]) -> "GroupStore":
        return GroupStore(self._peers, node_of(members[0]), self._timeout_s)


class GroupStore(Store):
    """What gloo and NCCL ask of a store. Connected while it is used."""

    def __init__(self, peers: PeerDirectory, node: str, timeout_s: float) -> None:
        super().__init__()
        self._peers, self._node, self._timeout_s = peers, node, timeout_s
        self._client: PeerClient | None = None

    def _ask(self, message: Message, kind: type[T], within_s: float) -> T:
        if self._client is None:
            self._client = self._peers.connect(self._node, self._timeout_s)
        try:
            return self._client.ask(message, kind, within_s)
        except PeerGone:
            self._client = None
            raise

    def set(self, key: str, value: str | bytes) -> None:
        data = value if isinstance(value, bytes) else value.encode()
        self._ask(KeySet(key=key, value=data), KeyDone, self._timeout_s)

    def get(self, key: str) -> bytes:
        return self._wait_for([key], self._timeout_s)[0]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._wait_for(keys, timeout.total_seconds() if timeout is not None else self._timeout_s)

    def check(self, keys: Sequence[str]) -> bool:
        """Are they there? They are not where no agent says so."""
        wanted = KeysWanted(keys=tuple(keys), waits=False)
        try:
            return bool(self._ask(wanted, KeyValues, self._timeout_s).values)
        except PeerGone:
            return False

    def _wait_for(self, keys: Sequence[str], within_s: float) -> tuple[bytes, ...]:
        wanted = KeysWanted(keys=tuple(keys))
        return self._ask(wanted, KeyValues, within_s).values

    def has_extended_api(self) -> bool:
        return False

    def rest(self) -> None:
        """Nothing more is asked for now."""
        if self._client is not None:
            self._client.close()
            self._client = None
