"""The memory of other nodes, read over the network while a loop loads.

The first rank of every node serves what lies in the node's memory; all others connect to it. The
connections are those of `multiprocessing.connection`, which authenticates with a key that the ranks
exchange; what is said over them is plain msgpack and bytes. Nothing is trusted: every byte that is
read is verified against its checksum.
"""

import contextlib
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import msgspec

from holdfast.snapshot.manifest import ArenaPlace, Manifest
from holdfast.snapshot.memory.sources import NodeMemory, Source, Unreadable


class ReadRequest(msgspec.Struct, frozen=True):
    node: str
    place: ArenaPlace
    key: str
    start: int
    stop: int


class MemoryAddress(msgspec.Struct, frozen=True):
    host: str
    port: int
    key: bytes


def own_address() -> str:
    """Under which other machines reach this one; the machine itself does, too."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


class MemoryServer:
    """Gives out bytes of these memories until it is closed."""

    def __init__(self, memories: Mapping[str, NodeMemory]) -> None:
        self._memories = memories
        key = secrets.token_bytes(32)
        self._listener = Listener(("", 0), authkey=key, backlog=1024)
        _, port = self._listener.address
        self.address = MemoryAddress(own_address(), int(port), key)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="memory server")
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                connection: Any = self._listener.accept()
            except Exception:  # a stranger, or the end: neither is ours
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: "Connection[Any, Any]") -> None:
        with contextlib.suppress(EOFError, OSError), connection:
            while True:
                request = msgspec.msgpack.decode(connection.recv_bytes(), type=ReadRequest)
                try:
                    data = self._memories[request.node].read(
                        request.place, request.key, request.start, request.stop
                    )
                    connection.send_bytes(b"\0" + bytes(data))
                except (Unreadable, KeyError) as error:
                    connection.send_bytes(b"\1" + str(error).encode())

    def close(self) -> None:
        self._is_closed = True
        address = ("127.0.0.1", self.address.port)
        with contextlib.suppress(OSError, EOFError):  # wakes the thread, which then ends
            Client(address, authkey=self.address.key).close()
        self._thread.join()
        self._listener.close()


class RemoteMemory:
    """(Source) One node's memory behind a connection, which several threads may use."""

    def __init__(
        self, node: str, manifests: Sequence[Manifest], connection: "RemoteConnection"
    ) -> None:
        self.node, self._manifests, self._connection = node, list(manifests), connection

    def manifests(self) -> list[Manifest]:
        return self._manifests

    def read(
        self, place: ArenaPlace, key: str, start: int, stop: int, into: memoryview | None = None
    ) -> memoryview:
        answer = self._connection.ask(ReadRequest(self.node, place, key, start, stop))
        if answer[0]:
            raise Unreadable(bytes(answer[1:]).decode())
        return answer[1:]

    def confirm(self, place: ArenaPlace) -> None:
        """What was read is a copy: it does not change any more."""


class RemoteConnection:
    """Made when it is first used."""

    def __init__(self, address: MemoryAddress) -> None:
        self._address = address
        self._turn = threading.Lock()
        self._connection: Any = None

    def ask(self, request: ReadRequest) -> memoryview:
        with self._turn:
            try:
                if self._connection is None:
                    address = (self._address.host, self._address.port)
                    self._connection = Client(address, authkey=self._address.key)
                self._connection.send_bytes(msgspec.msgpack.encode(request))
                return memoryview(self._connection.recv_bytes())
            except EOFError as error:
                raise OSError(f"{self._address.host} has closed the connection") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def remote_memories(manifests: Sequence[Manifest], connection: RemoteConnection) -> list[Source]:
    """One for every node whose memory lies behind a connection."""
    by_node: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        by_node.setdefault(manifest.node, []).append(manifest)
    return [RemoteMemory(node, found, connection) for node, found in by_node.items()]
