"""What launcher and workers say to each other, and how it is packed.

A frame is four bytes of length (big-endian) and that many bytes of MessagePack: one message, with
its type as a tag. Nothing is pickled, and a frame above the limit is refused before it is read.

    launcher -> worker    Assignment, Stop, Leave
    worker -> launcher    Hello, Ready, StepMessage, ChangeMessage, Measured, Finished, Failed
"""

import socket
import struct
import threading
from collections.abc import Iterator

import msgspec

from holdfast.engine.trainer import ChangeReport, Planned, StepReport
from holdfast.job.config import JobConfig
from holdfast.plan.profile import Profile

MAX_FRAME_BYTES = 64 * 2**20
_LENGTH = struct.Struct(">I")


class WireError(Exception):
    """The other side sent something that is no message."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    pass


class Assignment(Message, frozen=True, kw_only=True):
    """Everything a worker needs to know; always the first message to it."""

    worker: str
    config: JobConfig
    plans: tuple[Planned, ...]
    store_host: str
    store_port: int
    num_threads: int
    final_dir: str
    """Where parameters and moments are written at the end; empty = nowhere."""


class Stop(Message, frozen=True, kw_only=True):
    """Ask for a stop at the next step boundary."""


class Leave(Message, frozen=True, kw_only=True):
    """Nobody needs this worker any more."""


class Hello(Message, frozen=True, kw_only=True):
    """The process is there."""

    pid: int


class Ready(Message, frozen=True, kw_only=True):
    """Groups and state of the first plan are there."""


class StepMessage(Message, frozen=True, kw_only=True):
    report: StepReport


class ChangeMessage(Message, frozen=True, kw_only=True):
    report: ChangeReport


class Measured(Message, frozen=True, kw_only=True):
    """Times of one epoch, warm-up left out."""

    epoch: int
    profile: Profile


class Finished(Message, frozen=True, kw_only=True):
    """All steps are done, or an agreed stop; the worker waits to be dismissed."""

    epoch: int
    next_step: int
    staging_bytes: int
    final_bytes: int


class Failed(Message, frozen=True, kw_only=True):
    line: str
    is_consequence: bool
    """A group broke: most likely because of somebody else."""


ToWorker = Assignment | Stop | Leave
ToLauncher = Hello | Ready | StepMessage | ChangeMessage | Measured | Finished | Failed
_DECODER = msgspec.msgpack.Decoder(ToWorker | ToLauncher)
_ENCODER = msgspec.msgpack.Encoder()


def pack(message: Message) -> bytes:
    body = _ENCODER.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(body)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are allowed")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _decode(body)


def _decode(body: bytes) -> Message:
    try:
        message: Message = _DECODER.decode(body)
        return message
    except msgspec.DecodeError as error:
        raise WireError(f"not a message: {error}") from None


class Channel:
    """A worker's end: blocking, and safe to send on from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._unpacker = Unpacker()
        self._waiting: list[Message] = []

    def send(self, message: Message) -> None:
        data = pack(message)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> Message | None:
        """The next message; None when the other side is gone."""
        while not self._waiting:
            data = self._socket.recv(65536)
            if not data:
                return None
            self._waiting += self._unpacker.feed(data)
        return self._waiting.pop(0)

    def close(self) -> None:
        self._socket.close()
