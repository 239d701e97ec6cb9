"""How messages are packed: frames of MessagePack, typed by direction and limited in size.

A frame is four bytes of length (big-endian) and that many bytes of MessagePack: one message, with
its type as a tag. Nothing is pickled; a frame above the limit is refused before it is read, and a
reader takes only the types that the other side may send. The limit is tiny until the other side
has proved that it knows the secret.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.control.message import Message
from holdfast.runtime.wire.messages import (
    FromClient,
    FromHost,
    FromPeer,
    FromWorker,
    Handshake,
    ToAgent,
    ToClient,
    ToCoordinator,
    ToHost,
    ToPeer,
    ToWorker,
)

PROTOCOL = 1
"""Of all messages together: both ends of a connection must have the same."""
MAX_FRAME_BYTES = 64 * 2**20
MAX_HANDSHAKE_BYTES = 1024
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()

T = TypeVar("T")


class WireError(Exception):
    """The other side sent something that is no message."""


class Reader(Generic[T]):
    """What one side takes: these types, up to this size."""

    def __init__(self, types: Any, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(types)
        self.max_bytes = max_bytes

    def check(self, size: int) -> None:
        if size > self.max_bytes:
            raise WireError(f"a frame of {size} bytes; at most {self.max_bytes} are allowed")

    def decode(self, body: bytes) -> T:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(f"not a message: {error}") from None


BY_WORKER: Reader[ToWorker] = Reader(ToWorker)
FROM_WORKER: Reader[FromWorker] = Reader(FromWorker)
BY_AGENT: Reader[ToAgent] = Reader(ToAgent)
FROM_AGENT: Reader[ToCoordinator] = Reader(ToCoordinator)
BY_CLIENT: Reader[ToClient] = Reader(ToClient)
FROM_CLIENT: Reader[FromClient] = Reader(FromClient, 2**16)
FROM_HOST: Reader[FromHost] = Reader(FromHost, 2**16)
BY_HOST: Reader[ToHost] = Reader(ToHost)
FROM_PEER: Reader[FromPeer] = Reader(FromPeer, 2**20)
BY_PEER: Reader[ToPeer] = Reader(ToPeer)
HANDSHAKE: Reader[Handshake] = Reader(Handshake, MAX_HANDSHAKE_BYTES)


def pack(message: Message) -> bytes:
    body = _ENCODER.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(body)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return _LENGTH.pack(len(body)) + body


def frame_size(header: bytes) -> int:
    (size,) = _LENGTH.unpack(header)
    return int(size)


HEADER_BYTES = _LENGTH.size


class Unpacker(Generic[T]):
    """Bytes in, messages out."""

    def __init__(self, reader: Reader[T]) -> None:
        self._reader = reader
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            size = frame_size(bytes(self._buffer[:HEADER_BYTES]))
            self._reader.check(size)
            end = HEADER_BYTES + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            yield self._reader.decode(body)

    def rest(self) -> bytes:
        """What has come beyond the last message."""
        return bytes(self._buffer)


class Channel(Generic[T]):
    """A blocking end, safe to send on from several threads."""

    def __init__(self, sock: socket.socket, reader: Reader[T]) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._unpacker = Unpacker(reader)
        self._waiting: list[T] = []

    def send(self, message: Message) -> None:
        data = pack(message)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> T | None:
        """The next message; None when the other side is gone."""
        while not self._waiting:
            data = self._socket.recv(65536)
            if not data:
                return None
            self._waiting += self._unpacker.feed(data)
        return self._waiting.pop(0)

    def close(self) -> None:
        self._socket.close()
