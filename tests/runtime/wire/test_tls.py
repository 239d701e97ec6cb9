import asyncio
import ssl

import pytest

from holdfast.runtime.wire.tls import NO_TLS, client_tls, server_tls
from support.certificates import make_certificate, needs_openssl

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_without_files_there_is_none():
    assert server_tls(NO_TLS) is None
    assert client_tls(NO_TLS) is None


def say_hello(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """What the server answers to a client that says hello."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_words = await reader.readline()
        writer.write(b"you said " + with_words)
        await writer.drain()
        writer.close()

    async def main() -> bytes:
        listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            writer.write(b"hello\n")
            try:
                return await reader.readline()
            finally:
                writer.transport.abort()

    return asyncio.run(asyncio.wait_for(main(), 30))


def is_hung_up_on(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """The client may be told why, or find the connection closed."""
    try:
        return say_hello(server, client) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@needs_openssl
def test_both_sides_show_the_certificate_of_the_job_and_believe_no_other(tmp_path):
    job, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    server, client = server_tls(job), client_tls(job)
    assert server is not None
    assert client is not None
    assert say_hello(server, client) == b"you said hello\n"

    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname = False
    without.load_verify_locations(job.cert)
    wrong = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    wrong.check_hostname = False
    wrong.load_verify_locations(job.cert)
    wrong.load_cert_chain(other.cert, other.key)
    for stranger in (without, wrong):
        assert is_hung_up_on(server, stranger)
    believing_another = client_tls(other)
    assert believing_another is not None
    with pytest.raises(ssl.SSLError):
        say_hello(server, believing_another)
