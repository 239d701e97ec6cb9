"""Connections of the control plane: mutual proof first, then frames both ways.

Whatever a stranger sends (nothing, noise, a length of a gigabyte, a wrong proof) costs a refusal
and a line in the log, the latter at most once per address and not more than a few per second; it
never reaches the code that decides. A peer that has proved itself and then sends something that is
no message is refused in the same way: its connection ends, and it may come again.
"""

import asyncio
import resource
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.control.message import Message
from holdfast.runtime.wire.frames import HANDSHAKE, Reader, Unpacker, WireError, pack
from holdfast.runtime.wire.messages import Challenge, SecretProof, Welcome
from holdfast.runtime.wire.secret import ClientProof, ProofFailed, ServerProof

HANDSHAKE_S = 10.0
CONNECT_S = 3.0
"""A host that is cut off answers nothing, not even that."""
UNHEARD_MS = 5000
"""What was sent and is not acknowledged for so long ends a connection: the other side is cut off,
and nothing else would tell.
"""
MAX_UNPROVED = 4096
"""Connections that have not proved anything yet. With one more, the oldest of them is refused: who
knows the secret proves it at once, however many strangers there are.
"""
BACKLOG = 4096
"""Connections that wait to be accepted: thousands of agents come at once to a coordinator that was
started again, and one that finds no room tries again seconds later.
"""
UNPROVED_SHARE = 4
"""And no more than this part of the descriptors of a process: the others are for those who have."""
MAX_UNSENT_BYTES = 256 * 2**20
"""A peer that takes nothing off our hands is hung up on."""
MAX_ADDRESSES = 1000
LOG_EVERY_S = 1.0
PIECE_BYTES = 2**20
"""Of memory that is sent: what the kernel does not take at once is copied."""


class Strangers:
    """Counts refused connections, and logs them without flooding the log."""

    def __init__(self, log: Callable[[str], object], clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._counts: dict[str, int] = {}
        self._logged = -LOG_EVERY_S
        self.num_refused = 0

    def refuse(self, address: str, why: str) -> None:
        self.num_refused += 1
        known = address in self._counts
        if known or len(self._counts) < MAX_ADDRESSES:
            self._counts[address] = self._counts.get(address, 0) + 1
        now = self._clock()
        if known or now - self._logged < LOG_EVERY_S:
            return
        self._logged = now
        self._log(f"refused {address}: {why}; what else comes from there is only counted")


class Connection(asyncio.Protocol, ABC):
    """One end of a connection; the handshake is up to those who inherit."""

    def __init__(self, unheard_ms: int = UNHEARD_MS) -> None:
        self._unheard_ms = unheard_ms
        self._transport: asyncio.Transport | None = None
        self._unpacker: Unpacker[Any] = Unpacker(HANDSHAKE)
        self._memory: deque[memoryview] = deque()
        """Behind what the transport has; nothing else is sent before it is gone."""
        self._is_full = False
        self.is_open = False
        """Both sides have proved themselves, and none has closed it."""

    @property
    def address(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(peer[0]) if isinstance(peer, tuple) else "unknown"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_INET:
            end_if_unheard(sock, self._unheard_ms)

    def data_received(self, data: bytes) -> None:
        """Messages are taken one by one: any of them may change what the next one can be."""
        try:
            while data:
                unpacker, data = self._unpacker, self._take_all(self._unpacker, data)
                if unpacker is self._unpacker:
                    return
        except (WireError, ProofFailed) as error:
            self.refused(str(error))
            self.hang_up()

    def _take_all(self, unpacker: Unpacker[Any], data: bytes) -> bytes:
        """What is left over when another reader has taken over."""
        for message in unpacker.feed(data):
            self.take(message)
            if self._transport is None or self._transport.is_closing():
                return b""
            if unpacker is not self._unpacker:
                return unpacker.rest()
        return b""

    def expect(self, reader: Reader[Any]) -> None:
        self._unpacker = Unpacker(reader)

    def send(self, message: Message) -> int:
        """The bytes it took; nothing where the other side is gone."""
        return self.send_packed(pack(message))

    def send_packed(self, data: bytes) -> int:
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        unsent = transport.get_write_buffer_size() + sum(view.nbytes for view in self._memory)
        if unsent > MAX_UNSENT_BYTES:
            self.hang_up()
            return 0
        if self._memory:
            self._memory.append(memoryview(data))
        else:
            transport.write(data)
        return len(data)

    def send_memory(self, view: memoryview) -> None:
        """Send bytes from where they lie, a piece at a time, as fast as the other side takes them.
        They may change until they are gone.
        """
        self._memory.append(view)
        self._send_pieces()

    def _send_pieces(self) -> None:
        while self._memory and not self._is_full:
            if self._transport is None or self._transport.is_closing():
                self._memory.clear()
                return
            view = self._memory.popleft()
            if view.nbytes > PIECE_BYTES:
                self._memory.appendleft(view[PIECE_BYTES:])
            self._transport.write(view[:PIECE_BYTES])

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send_pieces()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """After what was sent has left."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        was_open, self.is_open = self.is_open, False
        self._memory.clear()
        self._transport = None
        self.lost("the connection ended" if error is None else str(error), was_open)

    # For those who inherit.

    @abstractmethod
    def take(self, message: Any) -> None: ...

    @abstractmethod
    def refused(self, why: str) -> None:
        """Something came that is no message or no proof."""

    @abstractmethod
    def lost(self, why: str, was_open: bool) -> None:
        """The connection is gone."""


class Gate:
    """What all connections of a server share."""

    def __init__(
        self,
        secret: str,
        term: int,
        strangers: Strangers,
        readers: dict[str, Reader[Any]],
        on_open: Callable[["ServerConnection"], object],
        on_message: Callable[["ServerConnection", Any], object],
        on_lost: Callable[["ServerConnection", str], object],
    ) -> None:
        """`readers`: what may come from each role."""
        self.secret, self.term, self.strangers, self.readers = secret, term, strangers, readers
        self.on_open, self.on_message, self.on_lost = on_open, on_message, on_lost
        self._unproved: dict[ServerConnection, None] = {}
        """The oldest first."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_unproved = max(1, min(MAX_UNPROVED, descriptors // UNPROVED_SHARE))

    @property
    def num_unproved(self) -> int:
        return len(self._unproved)

    def came(self, connection: "ServerConnection") -> None:
        self._unproved[connection] = None
        if len(self._unproved) > self._max_unproved:
            oldest = next(iter(self._unproved))
            self.went(oldest)
            oldest.refused("too many connections that have proved nothing")
            oldest.hang_up()

    def went(self, connection: "ServerConnection") -> None:
        """It has proved itself, or is gone."""
        self._unproved.pop(connection, None)


class ServerConnection(Connection):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self._proof = ServerProof(gate.secret, gate.term)
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""
        self.role = ""
        self.name = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address = self.address
        self._gate.came(self)
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._too_late)
        self.send(self._proof.challenge())

    def _too_late(self) -> None:
        self.refused(f"no proof within {HANDSHAKE_S:g} s")
        self.hang_up()

    def take(self, message: Any) -> None:
        if self.is_open:
            self._gate.on_message(self, message)
            return
        if not isinstance(message, SecretProof) or message.role not in self._gate.readers:
            raise ProofFailed(f"a {type(message).__name__} instead of a proof")
        welcome = self._proof.check(message)
        self.role, self.name = message.role, message.name
        self._proved()
        self.is_open = True
        self.expect(self._gate.readers[self.role])
        self.send(welcome)
        self._gate.on_open(self)

    def _proved(self) -> None:
        self._gate.went(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def refused(self, why: str) -> None:
        self._gate.strangers.refuse(self._address, why)

    def lost(self, why: str, was_open: bool) -> None:
        if was_open:
            self._gate.on_lost(self, why)
        elif not self.role:
            self._proved()


class ClientConnection(Connection):
    """Opens with a proof; `opened` is done when the server has given its own."""

    def __init__(
        self,
        proof: ClientProof,
        reader: Reader[Any],
        on_message: Callable[[Any], object],
        on_lost: Callable[[str], object],
        unheard_ms: int = UNHEARD_MS,
    ) -> None:
        super().__init__(unheard_ms)
        self._proof, self._reader = proof, reader
        self._on_message, self._on_lost = on_message, on_lost
        self.opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The server's term."""

    def take(self, message: Any) -> None:
        match message:
            case _ if self.is_open:
                self._on_message(message)
            case Challenge():
                self.send(self._proof.answer(message))
            case Welcome():
                term = self._proof.check(message)
                self.is_open = True
                self.expect(self._reader)
                if not self.opened.done():
                    self.opened.set_result(term)
            case _:
                raise ProofFailed(f"a {type(message).__name__} instead of a challenge")

    def refused(self, why: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(ProofFailed(why))

    def lost(self, why: str, was_open: bool) -> None:
        if not self.opened.done():
            why = "the other side hung up before it proved anything; it may have another secret"
            self.opened.set_exception(ProofFailed(why))
        if was_open:
            self._on_lost(why)


async def open_connection(
    host: str,
    port: int,
    proof: ClientProof,
    reader: Reader[Any],
    *,
    tls: ssl.SSLContext | None = None,
    on_message: Callable[[Any], object],
    on_lost: Callable[[str], object],
    unheard_ms: int = UNHEARD_MS,
) -> tuple[ClientConnection, int]:
    """Connected and proved: the connection, and the server's term."""
    loop = asyncio.get_running_loop()

    def make() -> ClientConnection:
        return ClientConnection(proof, reader, on_message, on_lost, unheard_ms)

    async with asyncio.timeout(CONNECT_S):
        _, connection = await loop.create_connection(make, host, port, ssl=tls)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            return connection, await connection.opened
    except BaseException:
        connection.hang_up()
        raise


async def is_refused(loop: asyncio.AbstractEventLoop, host: str, port: int) -> bool:
    """The host is there, and no process listens."""
    with socket.socket() as sock:
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(sock, (host, port))
        except ConnectionRefusedError:
            return True
        except OSError:  # a timeout, too
            return False
    return False


def end_if_unheard(sock: Any, unheard_ms: int = UNHEARD_MS) -> None:
    """Also where nothing is sent: then the kernel asks now and then."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unheard_ms)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
