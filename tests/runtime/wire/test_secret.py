import stat

import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.wire.frames import PROTOCOL
from holdfast.runtime.wire.messages import Challenge, SecretProof
from holdfast.runtime.wire.secret import (
    ClientProof,
    ProofFailed,
    ServerProof,
    make_secret,
    read_secret,
    write_secret,
)

SECRET = "a secret of the job"


def shake(server_secret=SECRET, client_secret=SECRET, term=3):
    server = ServerProof(server_secret, term)
    client = ClientProof(client_secret, "agent", "n0")
    proof = client.answer(server.challenge())
    return server, client, proof


def test_both_know_it():
    server, client, proof = shake()
    assert client.check(server.check(proof)) == 3


def test_a_client_with_another_secret_is_refused():
    server, _, proof = shake(client_secret="something else")
    with pytest.raises(ProofFailed, match="does not know the job's secret"):
        server.check(proof)


def test_a_server_with_another_secret_is_refused():
    _, client, _ = shake()
    other, _, answer = shake()
    with pytest.raises(ProofFailed, match="the server does not know"):
        client.check(other.check(answer))


def test_a_term_cannot_be_changed_on_the_way():
    server, client, proof = shake(term=3)
    welcome = server.check(proof)
    with pytest.raises(ProofFailed):
        client.check(msgspec.structs.replace(welcome, term=4))


def test_what_was_recorded_is_of_no_use():
    _, _, recorded = shake()
    with pytest.raises(ProofFailed):
        ServerProof(SECRET, 3).check(recorded)


@pytest.mark.parametrize("change", [{"role": "client"}, {"name": "n1"}, {"nonce": b"x" * 32}])
def test_no_process_can_speak_in_anothers_name(change):
    server, _, proof = shake()
    with pytest.raises(ProofFailed):
        server.check(msgspec.structs.replace(proof, **change))


def test_an_answer_cannot_be_turned_round():
    """The macs of the two sides differ, so no side can be made to answer its own question."""
    server, client, proof = shake()
    with pytest.raises(ProofFailed):
        client.check(msgspec.structs.replace(server.check(proof), proof=proof.proof))


def test_another_protocol_is_named():
    with pytest.raises(ProofFailed, match=f"protocol 99, this is protocol {PROTOCOL}"):
        ClientProof(SECRET, "agent", "n0").answer(Challenge(protocol=99, nonce=b"x" * 32))
    proof = SecretProof(protocol=99, role="agent", name="n0", nonce=b"x" * 32, proof=b"")
    with pytest.raises(ProofFailed, match="protocol 99"):
        ServerProof(SECRET, 1).check(proof)


def test_the_secret_is_for_its_owner_alone(tmp_path):
    secret = make_secret({})
    write_secret(tmp_path, secret)
    assert len(secret) == 64
    assert make_secret({}) != secret
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert read_secret(tmp_path, {}) == secret
    assert read_secret(tmp_path, {"HOLDFAST_SECRET": "given"}) == "given"


def test_a_given_secret_must_not_be_short():
    assert make_secret({"HOLDFAST_SECRET": "x" * 16}) == "x" * 16
    with pytest.raises(HoldfastError, match="15 characters; at least 16"):
        make_secret({"HOLDFAST_SECRET": "x" * 15})
