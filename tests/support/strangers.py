"""What strangers send: noise, mutated messages, lies about lengths."""

import random
import socket
import struct

from holdfast.control.facts import Beat, NodeConnected
from holdfast.runtime.wire.frames import HANDSHAKE, PROTOCOL, Channel, pack
from holdfast.runtime.wire.messages import SecretProof, StatusRequest
from holdfast.runtime.wire.secret import ClientProof

SAMPLES = [
    pack(message)
    for message in (
        SecretProof(protocol=PROTOCOL, role="agent", name="n0", nonce=b"x" * 32, proof=b"y" * 32),
        NodeConnected(node="n0", agent="evil", places=("n0.g0",)),
        Beat(node="n0", sent_ms=1),
        StatusRequest(),
    )
]


def garbled(chance: random.Random) -> bytes:
    """One frame: random bytes, a mutated message, or a message with a wrong length."""
    kind = chance.randrange(3)
    if kind == 0:
        body = chance.randbytes(chance.randrange(64))
        return struct.pack(">I", len(body)) + body
    frame = bytearray(chance.choice(SAMPLES))
    if kind == 1:
        for _ in range(chance.randrange(1, 8)):
            frame[chance.randrange(4, len(frame))] = chance.randrange(256)
    else:
        frame[:4] = struct.pack(">I", chance.choice((0, 1, 7, 2**10, 2**16, 2**30, 2**32 - 1)))
    return bytes(frame)


def attack(host: str, port: int, frames: list[bytes], *, secret: str = "") -> None:
    """Send until the other side hangs up; with a secret, only after a good proof."""
    with socket.create_connection((host, port), timeout=5) as sock:
        channel = Channel(sock, HANDSHAKE)
        challenge = channel.receive()
        if secret:
            proof = ClientProof(secret, "client", "fuzz")
            channel.send(proof.answer(challenge))
            proof.check(channel.receive())
        try:
            for frame in frames:
                sock.sendall(frame)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:
            pass


def attack_in_many_ways(host: str, port: int, num_frames: int, seed: int, secret: str) -> None:
    """Wrong secrets, a gigabyte that never comes, and a stream of noise over many connections."""
    chance = random.Random(seed)
    attack(host, port, [struct.pack(">I", 2**30), b"x" * 100])
    wrong = ClientProof("not the secret at all", "agent", "n0")
    with socket.create_connection((host, port), timeout=5) as sock:
        channel = Channel(sock, HANDSHAKE)
        channel.send(wrong.answer(channel.receive()))
        assert channel.receive() is None
    sent = 0
    while sent < num_frames:
        frames = [garbled(chance) for _ in range(chance.randrange(1, 40))]
        attack(host, port, frames, secret=secret if chance.random() < 0.5 else "")
        sent += len(frames)
