"""The job's secret, and how two ends prove to each other that both know it.

    server                                client
      | Challenge(nonce) ------------------>|
      |<------ Proof(role, name, nonce, mac)|   mac over "client", role, name and both nonces
      | Welcome(mac, term) ---------------->|   mac over "server", term and both nonces

The secret itself is never sent. Each side chose a nonce, so nothing that was recorded earlier is
of use, and the two macs differ in their label, so no side can be made to answer its own question.
The client proves first: a stranger learns nothing that it could search offline. Who can listen and
change bytes on the way needs TLS to be kept out (job.tls_cert).
"""

import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.runtime.wire.frames import PROTOCOL
from holdfast.runtime.wire.messages import Challenge, SecretProof, Welcome

SECRET = "secret"
"""File in the run directory."""
VARIABLE = "HOLDFAST_SECRET"
MIN_LENGTH = 16
NONCE_BYTES = 32


class ProofFailed(Exception):
    """The other side does not know the secret, or speaks another protocol."""


def make_secret(environment: Mapping[str, str]) -> str:
    """The one that was given, or a new one."""
    given = environment.get(VARIABLE, "")
    if given and len(given) < MIN_LENGTH:
        raise HoldfastError(
            f"{VARIABLE} has {len(given)} characters; at least {MIN_LENGTH} are needed, so that it "
            f"cannot be guessed"
        )
    return given or secrets.token_hex(32)


def write_secret(run_dir: Path, secret: str) -> None:
    """For the owner of the run alone."""
    fd = os.open(run_dir / SECRET, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(secret)


def read_secret(run_dir: Path, environment: Mapping[str, str]) -> str:
    given = environment.get(VARIABLE, "")
    return given or (run_dir / SECRET).read_text(encoding="ascii").strip()


def _mac(secret: str, *parts: bytes) -> bytes:
    """Over the parts with their lengths, so that no two lists of parts are the same bytes."""
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret.encode(), text, "sha256")


class ServerProof:
    """One handshake, from the side that was called."""

    def __init__(self, secret: str, term: int) -> None:
        self._secret, self._term = secret, term
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def challenge(self) -> Challenge:
        return Challenge(protocol=PROTOCOL, nonce=self._nonce)

    def check(self, proof: SecretProof) -> Welcome:
        _check_protocol(proof.protocol)
        expected = _client_mac(self._secret, proof.role, proof.name, self._nonce, proof.nonce)
        if len(proof.nonce) != NONCE_BYTES or not hmac.compare_digest(expected, proof.proof):
            raise ProofFailed("it does not know the job's secret")
        mac = _server_mac(self._secret, self._term, self._nonce, proof.nonce)
        return Welcome(proof=mac, term=self._term)


class ClientProof:
    """One handshake, from the side that called."""

    def __init__(self, secret: str, role: str, name: str) -> None:
        self._secret, self._role, self._name = secret, role, name
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._theirs = b""

    def answer(self, challenge: Challenge) -> SecretProof:
        _check_protocol(challenge.protocol)
        if len(challenge.nonce) != NONCE_BYTES or self._theirs:
            raise ProofFailed("it asks in a way that no server does")
        self._theirs = challenge.nonce
        mac = _client_mac(self._secret, self._role, self._name, self._theirs, self._nonce)
        return SecretProof(
            protocol=PROTOCOL, role=self._role, name=self._name, nonce=self._nonce, proof=mac
        )

    def check(self, welcome: Welcome) -> int:
        """The server's term."""
        expected = _server_mac(self._secret, welcome.term, self._theirs, self._nonce)
        if not self._theirs or not hmac.compare_digest(expected, welcome.proof):
            raise ProofFailed("the server does not know the job's secret")
        return welcome.term


def _client_mac(secret: str, role: str, name: str, server: bytes, client: bytes) -> bytes:
    return _mac(secret, b"client", role.encode(), name.encode(), server, client)


def _server_mac(secret: str, term: int, server: bytes, client: bytes) -> bytes:
    return _mac(secret, b"server", str(term).encode(), server, client)


def _check_protocol(theirs: int) -> None:
    if theirs != PROTOCOL:
        raise ProofFailed(f"it speaks protocol {theirs}, this is protocol {PROTOCOL}")
