"""What an agent does for workers of any node: it keeps the keys through which the members of a
group find each other, and gives out bytes of the snapshots in its node's memory. And for agents: it
says whether it reaches the coordinator.

The keys of a group lie with the agent of its first member's node, so no single process has those
of all groups: if this one is gone, so is a member of the group. Both sides prove the job's secret
before anything else is read.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from typing import Any

from holdfast.runtime.wire.connection import Gate, ServerConnection, Strangers
from holdfast.runtime.wire.frames import FROM_PEER, Reader
from holdfast.runtime.wire.host_messages import (
    BytesFollow,
    BytesWanted,
    KeyDone,
    KeySet,
    KeysWanted,
    KeyValues,
    ManifestsGiven,
    ManifestsWanted,
    Peer,
    PinWanted,
    ReachAsked,
    ReachTold,
)
from holdfast.runtime.wire.tls import NO_TLS, TlsFiles, server_tls
from holdfast.snapshot.layout import Version
from holdfast.snapshot.memory.sources import NodeMemory, Unreadable

_LOG = logging.getLogger(__name__)

KEPT_EPOCHS = 16
MAX_READ_BYTES = 16 * 2**20
"""At once, as much as a checksum covers. It leaves in pieces: the agent has others to serve."""
_EPOCH = re.compile(r"e(\d+)/")


class GroupKeys:
    """Values by key, and who waits for some of them."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: list[tuple[object, tuple[str, ...], Callable[[KeyValues], object]]] = []

    def set(self, key: str, value: bytes) -> None:
        if key not in self._values and (epoch := _epoch_of(key)):
            self._forget_before(epoch - KEPT_EPOCHS)
        self._values[key] = value
        waiting, self._waiting = self._waiting, []
        for asker, keys, answer in waiting:
            self.wait(asker, keys, answer)

    def wait(
        self, asker: object, keys: tuple[str, ...], answer: Callable[[KeyValues], object]
    ) -> None:
        """Answered at once if all are there, else as soon as they are."""
        if self.has(keys):
            answer(KeyValues(values=tuple(self._values[key] for key in keys)))
        else:
            self._waiting.append((asker, keys, answer))

    def has(self, keys: tuple[str, ...]) -> bool:
        return all(key in self._values for key in keys)

    def gone(self, asker: object) -> None:
        self._waiting = [waiting for waiting in self._waiting if waiting[0] is not asker]

    def _forget_before(self, epoch: int) -> None:
        old = [key for key in self._values if 0 < _epoch_of(key) < epoch]
        for key in old:
            del self._values[key]


def _epoch_of(key: str) -> int:
    """0: of none."""
    found = _EPOCH.match(key)
    return int(found[1]) if found else 0


class PeerService:
    def __init__(
        self,
        secret: str,
        memory: Callable[[], NodeMemory],
        tls: TlsFiles = NO_TLS,
        reach: Callable[[], ReachTold] = lambda: ReachTold(is_reached=False, term=0),
    ) -> None:
        """`memory`: of this node, as it is now. `reach`: is the coordinator reached?"""
        self._keys, self._memory, self._reach = GroupKeys(), memory, reach
        self._pinned: ServerConnection | None = None
        readers: dict[str, Reader[Any]] = {"worker": FROM_PEER}
        self._gate = Gate(
            secret,
            0,
            Strangers(_LOG.warning, time.monotonic),
            readers,
            lambda connection: None,
            self._on_message,
            self._on_lost,
        )
        self._tls = server_tls(tls)
        self._server: asyncio.Server | None = None

    async def start(self, host: str) -> Peer:
        """Where it listens."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ServerConnection(self._gate), host, 0, ssl=self._tls
        )
        address = self._server.sockets[0].getsockname()
        return Peer(host=str(address[0]), port=int(address[1]))

    def _on_message(self, connection: ServerConnection, message: Any) -> None:
        match message:
            case KeySet(key=key, value=value):
                self._keys.set(key, value)
                connection.send(KeyDone())
            case KeysWanted(keys=keys, waits=waits) if waits or self._keys.has(keys):
                self._keys.wait(connection, keys, connection.send)
            case KeysWanted():
                connection.send(KeyValues(values=()))
            case ManifestsWanted():
                connection.send(ManifestsGiven(manifests=tuple(self._memory().manifests())))
            case PinWanted(version=version):
                connection.send(self._pin(connection, version))
            case BytesWanted():
                self._give(connection, message)
            case ReachAsked():
                connection.send(self._reach())

    def _give(self, connection: ServerConnection, wanted: BytesWanted) -> None:
        """The memory itself, not a copy, and as it is: who asks verifies it."""
        size = wanted.stop - wanted.start
        try:
            if not 0 <= size <= MAX_READ_BYTES:
                raise Unreadable(f"{size} bytes at once; {MAX_READ_BYTES} at most")
            found = self._memory().read(wanted.place, wanted.key, wanted.start, wanted.stop)
        except Unreadable as error:
            connection.send(BytesFollow(num_bytes=0, error=str(error)))
            return
        connection.send(BytesFollow(num_bytes=found.nbytes))
        connection.send_memory(found)

    def _pin(self, connection: ServerConnection, version: Version | None) -> ManifestsGiven:
        """One at a time: a job has one process that writes checkpoints."""
        arenas = list(self._memory().arenas.values())
        if version is None:
            self._pinned = None
            for arena in arenas:
                arena.unpin()
            return ManifestsGiven(manifests=())
        self._pinned = connection
        pinned = NodeMemory(self._memory().node, [a for a in arenas if a.pin(version)])
        found = [manifest for manifest in pinned.manifests() if manifest.version == version]
        return ManifestsGiven(manifests=tuple(found))

    def _on_lost(self, connection: ServerConnection, why: str) -> None:
        self._keys.gone(connection)
        if self._pinned is connection:
            self._pin(connection, None)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
