"""A blocking connection to the agent of another node: proof first, then questions and answers."""

import socket
import ssl
from contextlib import ExitStack
from typing import TypeVar

from holdfast.control.message import Message
from holdfast.runtime.wire.connection import CONNECT_S, end_if_unheard
from holdfast.runtime.wire.frames import (
    BY_PEER,
    HANDSHAKE,
    HEADER_BYTES,
    Channel,
    WireError,
    frame_size,
    pack,
)
from holdfast.runtime.wire.host_messages import BytesFollow, BytesWanted, Peer
from holdfast.runtime.wire.messages import Challenge, ToPeer, Welcome
from holdfast.runtime.wire.secret import ClientProof, ProofFailed

T = TypeVar("T", bound=Message)


class PeerGone(RuntimeError):
    """It does not answer, or not with what was asked for. (A RuntimeError, since that is what
    groups expect of a store.)
    """


class PeerClient:
    """For one caller at a time."""

    def __init__(
        self, peer: Peer, secret: str, name: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._peer = peer
        with ExitStack() as undo:
            try:
                sock = socket.create_connection((peer.host, peer.port), CONNECT_S)
                undo.enter_context(sock)
                end_if_unheard(sock)
                self._socket = tls.wrap_socket(sock) if tls is not None else sock
                self._prove(ClientProof(secret, "worker", name))
            except (OSError, ProofFailed, WireError) as error:
                raise PeerGone(f"the agent at {peer.host}:{peer.port}: {error}") from None
            undo.pop_all()

    def _prove(self, proof: ClientProof) -> None:
        channel = Channel(self._socket, HANDSHAKE)
        challenge = channel.receive()
        if not isinstance(challenge, Challenge):
            raise ProofFailed("it does not begin as an agent does")
        channel.send(proof.answer(challenge))
        welcome = channel.receive()
        if not isinstance(welcome, Welcome):
            raise ProofFailed("it hung up before it proved anything; it may have another secret")
        proof.check(welcome)

    def ask(self, message: Message, kind: type[T], within_s: float) -> T:
        """Its answer; PeerGone if there is none."""
        answer: ToPeer | None = None
        try:
            self._socket.settimeout(within_s)
            self._socket.sendall(pack(message))
            answer = self._receive()
        except TimeoutError:
            why = f"no answer within {within_s:g} s"
        except (OSError, WireError) as error:
            why = str(error)
        else:
            why = f"a {type(answer).__name__}"
        if isinstance(answer, kind):
            return answer
        self.close()
        raise PeerGone(f"the agent at {self._peer.host}:{self._peer.port}: {why}")

    def ask_bytes(self, wanted: BytesWanted, into: memoryview, within_s: float) -> str:
        """What it wants, in its place; or why that agent cannot give it."""
        follow = self.ask(wanted, BytesFollow, within_s)
        if follow.error:
            return follow.error
        try:
            if follow.num_bytes != into.nbytes:
                raise ConnectionError(f"{follow.num_bytes} bytes instead of {into.nbytes}")
            self._fill(into)
        except OSError as error:  # a timeout, too
            self.close()
            raise PeerGone(f"the agent at {self._peer.host}:{self._peer.port}: {error}") from None
        return ""

    def _receive(self) -> ToPeer:
        """One message and not a byte more: what follows may be none."""
        header = bytearray(HEADER_BYTES)
        self._fill(memoryview(header))
        size = frame_size(bytes(header))
        BY_PEER.check(size)
        body = bytearray(size)
        self._fill(memoryview(body))
        return BY_PEER.decode(bytes(body))

    def _fill(self, into: memoryview) -> None:
        done = 0
        while done < into.nbytes:
            count = self._socket.recv_into(into[done:])
            if not count:
                raise ConnectionError("it hung up")
            done += count

    def close(self) -> None:
        self._socket.close()
