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

from holdfast.runtime.agent.peer_service import MAX_READ_BYTES
from holdfast.runtime.wire.host_messages import (
    BytesGiven,
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
    """(Source) One node's memory behind a connection, which several threads may use."""

    def __init__(self, node: str, client: PeerClient, manifests: Sequence[Manifest]) -> None:
        self.node, self._client, self._manifests = node, client, list(manifests)
        self._turn = threading.Lock()

    def manifests(self) -> list[Manifest]:
        return self._manifests

    def read(self, place: ArenaPlace, key: str, start: int, stop: int) -> memoryview:
        data = bytearray(stop - start)
        for low in range(start, stop, MAX_READ_BYTES):
            high = min(low + MAX_READ_BYTES, stop)
            wanted = BytesWanted(place=place, key=key, start=low, stop=high)
            data[low - start : high - start] = self._ask(wanted)
        return memoryview(data)

    def _ask(self, wanted: BytesWanted) -> bytes:
        try:
            with self._turn:
                answer = self._client.ask(wanted, BytesGiven, ANSWER_S)
        except (PeerGone, OSError) as error:
            raise Unreadable(f"{self.node}: {error}") from None
        if answer.error:
            raise Unreadable(answer.error)
        return answer.data

    def confirm(self, place: ArenaPlace) -> None:
        """What was read is a copy: it does not change any more."""

    def close(self) -> None:
        self._client.close()


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
        return RemoteNode(node, client, answer.manifests)

    def _pin(self, known: RemoteNode | None, node: str, version: Version) -> RemoteNode:
        client = known._client if known is not None else self._peers.connect(node, ANSWER_S)
        answer = client.ask(PinWanted(version=version), ManifestsGiven, ANSWER_S)
        return RemoteNode(node, client, answer.manifests)

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
