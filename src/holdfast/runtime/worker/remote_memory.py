"""The memory of other hosts, through their agents: what a restore, a copy or a checkpoint reads
where it does not lie on this host.

All agents are asked at the same time, and one that does not answer is one source less. What
arrives is verified by who reads it.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np

from holdfast.runtime.agent.peer_service import MAX_READ_BYTES
from holdfast.runtime.wire.host_messages import (
    BytesWanted,
    ManifestsGiven,
    ManifestsWanted,
    PinWanted,
)
from holdfast.runtime.wire.peer_client import PeerClient, PeerGone
from holdfast.runtime.worker.group_store import PeerDirectory
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import ArenaPlace, Manifest
from holdfast.snapshot.memory.sources import Source, Unreadable

_LOG = logging.getLogger(__name__)

ANSWER_S = 20.0
MAX_AT_ONCE = 32


class RemoteNode:
    """(Source) One node's memory. Several threads may read, each over a connection of its own."""

    def __init__(
        self,
        node: str,
        client: PeerClient,
        manifests: Sequence[Manifest],
        connect: Callable[[], PeerClient],
    ) -> None:
        """`client` is the first: what was pinned over it stays pinned while it is open."""
        self.node, self.first, self._manifests = node, client, list(manifests)
        self._connect, self._lock = connect, threading.Lock()
        self._idle, self._all = [client], [client]

    def manifests(self) -> list[Manifest]:
        return self._manifests

    def read(
        self, place: ArenaPlace, key: str, start: int, stop: int, into: memoryview | None = None
    ) -> memoryview:
        data = np.empty(stop - start, np.uint8).data if into is None else into
        client = self._take()
        for low in range(start, stop, MAX_READ_BYTES):
            high = min(low + MAX_READ_BYTES, stop)
            wanted = BytesWanted(place=place, key=key, start=low, stop=high)
            try:
                error = client.ask_bytes(wanted, data[low - start : high - start], ANSWER_S)
            except (PeerGone, OSError) as gone:
                raise Unreadable(f"{self.node}: {gone}") from None
            if error:
                self._idle.append(client)
                raise Unreadable(error)
        self._idle.append(client)
        return data

    def _take(self) -> PeerClient:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            client = self._connect()
        except (PeerGone, OSError) as gone:
            raise Unreadable(f"{self.node}: {gone}") from None
        self._all.append(client)
        return client

    def confirm(self, place: ArenaPlace) -> None:
        """What was read is a copy: it does not change any more."""

    def close_but_first(self) -> None:
        for client in self._all[1:]:
            client.close()

    def close(self) -> None:
        self.close_but_first()
        self.first.close()


class RemoteMemories:
    """(OtherHosts)"""

    def __init__(self, peers: PeerDirectory) -> None:
        self._peers = peers
        self._pinned: dict[str, RemoteNode] = {}

    @contextmanager
    def open(self) -> Iterator[Sequence[Source]]:
        nodes = self._ask_all(self._peers.others(), self._open)
        try:
            yield nodes
        finally:
            for node in nodes:
                node.close()

    @contextmanager
    def open_node(self, node: str) -> Iterator[Source]:
        try:
            found = self._open(node)
        except (PeerGone, OSError) as error:
            raise Unreadable(f"{node}: {error}") from None
        try:
            yield found
        finally:
            found.close()

    def pin(self, version: Version) -> Sequence[Source]:
        before, self._pinned = self._pinned, {}
        found = self._ask_all(
            self._peers.others(), lambda node: self._pin(before.pop(node, None), node, version)
        )
        self._pinned = {node.node: node for node in found}
        for left in before.values():
            left.close()
        return [node for node in found if node.manifests()]

    def release(self) -> None:
        """The end of a connection releases what was pinned over it."""
        for node in self._pinned.values():
            node.close()
        self._pinned = {}

    def _open(self, node: str) -> RemoteNode:
        client = self._peers.connect(node, ANSWER_S)
        answer = client.ask(ManifestsWanted(), ManifestsGiven, ANSWER_S)
        return self._remote(node, client, answer)

    def _pin(self, known: RemoteNode | None, node: str, version: Version) -> RemoteNode:
        if known is not None:
            known.close_but_first()
        client = known.first if known is not None else self._peers.connect(node, ANSWER_S)
        answer = client.ask(PinWanted(version=version), ManifestsGiven, ANSWER_S)
        return self._remote(node, client, answer)

    def _remote(self, node: str, client: PeerClient, answer: ManifestsGiven) -> RemoteNode:
        connect = partial(self._peers.connect, node, ANSWER_S)
        return RemoteNode(node, client, answer.manifests, connect)

    def _ask_all(self, nodes: Sequence[str], ask: Callable[[str], RemoteNode]) -> list[RemoteNode]:
        if not nodes:
            return []

        def try_one(node: str) -> RemoteNode | None:
            try:
                return ask(node)
            except (PeerGone, OSError) as error:
                _LOG.warning("the memory of %s cannot be reached: %s", node, error)
                return None

        with ThreadPoolExecutor(min(MAX_AT_ONCE, len(nodes))) as pool:
            found = pool.map(try_one, nodes)
        return [node for node in found if node is not None]
