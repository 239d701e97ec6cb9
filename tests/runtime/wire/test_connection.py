import asyncio
import socket
import struct

import pytest

from holdfast.runtime.wire.connection import (
    ClientConnection,
    Gate,
    ServerConnection,
    Strangers,
    open_connection,
)
from holdfast.runtime.wire.frames import BY_CLIENT, FROM_CLIENT, pack
from holdfast.runtime.wire.messages import Done, StatusRequest
from holdfast.runtime.wire.secret import ClientProof, ProofFailed
from support.strangers import attack_in_many_ways

pytestmark = pytest.mark.process  # real connections

SECRET = "a secret of the job"


class Server:
    """Answers every request; notes who came, went and was refused."""

    def __init__(self):
        self.log, self.opened, self.lost, self.heard, self.ends = [], [], [], [], []
        self.strangers = Strangers(self.log.append, lambda: 1000.0 * len(self.log))
        self.gate = Gate(
            SECRET,
            7,
            self.strangers,
            {"client": FROM_CLIENT},
            self.opened.append,
            self.answer,
            lambda connection, why: self.lost.append(connection.name),
        )

    def answer(self, connection, message):
        self.heard.append(message)
        connection.send(Done(text=f"hello {connection.name}"))

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def accept(self):
        self.ends.append(ServerConnection(self.gate))
        return self.ends[-1]

    async def __aexit__(self, *error):
        """Whatever is still open is hung up on."""
        self._server.close()
        for end in self.ends:
            end.hang_up()
        while any(end._transport is not None for end in self.ends):
            await asyncio.sleep(0)


async def connect(server, secret=SECRET, role="client"):
    answers = asyncio.Queue()
    connection, term = await open_connection(
        "127.0.0.1",
        server.port,
        ClientProof(secret, role, "x"),
        BY_CLIENT,
        on_message=answers.put_nowait,
        on_lost=answers.put_nowait,
    )
    server.ends.append(connection)
    return connection, term, answers


def test_question_and_answer():
    async def main():
        async with Server() as server:
            connection, term, answers = await connect(server)
            connection.send(StatusRequest())
            assert await answers.get() == Done(text="hello x")
            assert (term, server.heard) == (7, [StatusRequest()])
            connection.close()
            await answers.get()
            while not server.lost:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_a_message_may_come_with_the_last_word_of_the_handshake():
    """What a client sends at once, before it has the server's proof, is not lost."""

    class Eager(ClientConnection):
        def take(self, message):
            super().take(message)
            if not self.is_open:
                self.send(StatusRequest())

    async def main():
        async with Server() as server:
            answers = asyncio.Queue()
            loop = asyncio.get_running_loop()
            proof = ClientProof(SECRET, "client", "x")
            _, connection = await loop.create_connection(
                lambda: Eager(proof, BY_CLIENT, answers.put_nowait, answers.put_nowait),
                "127.0.0.1",
                server.port,
            )
            assert await answers.get() == Done(text="hello x")
            server.ends.append(connection)

    asyncio.run(main())


@pytest.mark.parametrize(("secret", "role"), [("another secret", "client"), (SECRET, "king")])
def test_strangers_are_refused(secret, role):
    async def main():
        async with Server() as server:
            with pytest.raises(ProofFailed):
                await connect(server, secret, role)
            assert server.opened == []
            assert server.strangers.num_refused == 1
            assert server.log[0].startswith("refused 127.0.0.1: ")

    asyncio.run(main())


def test_a_client_does_not_believe_a_server_without_the_secret():
    async def main():
        async with Server() as server:
            server.gate.secret = "another secret"
            server.gate.on_open = None
            with pytest.raises(ProofFailed):
                await connect(server)

    asyncio.run(main())


@pytest.mark.slow
def test_ten_thousand_garbled_frames_do_no_harm():
    async def main():
        async with Server() as server:
            connection, _, answers = await connect(server)
            await asyncio.to_thread(
                attack_in_many_ways, "127.0.0.1", server.port, 10_000, 1, SECRET
            )
            connection.send(StatusRequest())
            assert await answers.get() == Done(text="hello x")
            assert server.strangers.num_refused > 200
            assert server.gate.num_unproved == 0
            assert len(server.log) == 1, "one address: one line"

    asyncio.run(main())


def test_who_has_proved_itself_and_sends_noise_is_hung_up_on():
    async def main():
        async with Server() as server:
            connection, _, answers = await connect(server)
            connection.send_packed(struct.pack(">I", 2**30))
            await answers.get()
            assert server.strangers.num_refused == 1

    asyncio.run(main())


def test_a_handshake_has_a_deadline(monkeypatch):
    monkeypatch.setattr("holdfast.runtime.wire.connection.HANDSHAKE_S", 0.01)

    async def main():
        async with Server() as server:
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                while not server.strangers.num_refused:
                    await asyncio.sleep(0.005)
                assert sock.recv(100) is not None
            assert server.log == [
                "refused 127.0.0.1: no proof within 0.01 s; what else comes from there is only "
                "counted"
            ]

    asyncio.run(main())


def test_too_many_who_prove_nothing(monkeypatch):
    monkeypatch.setattr("holdfast.runtime.wire.connection.MAX_UNPROVED", 2)

    async def main():
        async with Server() as server:
            socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
            while server.strangers.num_refused < 3:
                await asyncio.sleep(0.005)
            assert server.gate.num_unproved == 2
            assert (await connect(server))[1] == 7  # though they are all still there
            for sock in socks:
                sock.close()
            while server.gate.num_unproved:
                await asyncio.sleep(0.005)

    asyncio.run(main())


def test_strangers_leave_descriptors_to_others(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (12, 12))

    async def main():
        async with Server() as server:
            socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(9)]
            while server.strangers.num_refused < 6:
                await asyncio.sleep(0.005)
            assert server.gate.num_unproved == 3
            for sock in socks:
                sock.close()

    asyncio.run(main())


def test_who_takes_nothing_is_hung_up_on(monkeypatch):
    monkeypatch.setattr("holdfast.runtime.wire.connection.MAX_UNSENT_BYTES", 2**20)

    async def main():
        async with Server() as server:
            connection, _, _ = await connect(server)
            (peer,) = server.opened
            connection._transport.pause_reading()
            data = pack(Done(text="x" * 2**20))
            for _ in range(20):
                peer.send_packed(data)
            await asyncio.sleep(0)
            assert peer.send_packed(data) == 0

    asyncio.run(main())


def test_the_log_is_not_flooded():
    now, log = [0.0], []
    strangers = Strangers(log.append, lambda: now[0])
    for number in range(100):
        strangers.refuse(f"10.0.0.{number}", "noise")
    assert len(log) == 1
    now[0] = 2.0
    strangers.refuse("10.0.0.0", "noise")
    strangers.refuse("10.0.1.0", "noise")
    assert len(log) == 2
    assert strangers.num_refused == 102
