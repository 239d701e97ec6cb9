import socket
import threading

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.launch.store import bind, connect_store, resolve, serve_store

pytestmark = pytest.mark.process  # real connections


def test_a_store_on_one_interface():
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = serve_store(listener)
    assert listener.fileno() == -1
    client = connect_store("127.0.0.1", port)
    client.set("key", "value")
    assert server.get("key") == b"value"
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", port))


def test_a_port_in_use_is_named():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HoldfastError) as caught:
            bind("127.0.0.1", port)
    assert str(caught.value) == (
        f"job.port = {port} on job.host = '127.0.0.1' cannot be used: Address already in use; "
        "choose another port, or 0 for any free one"
    )


def test_an_interface_that_is_not_there():
    with pytest.raises(HoldfastError, match=r"job\.host = '192\.0\.2\.1' cannot be used"):
        bind("192.0.2.1", 0)


def test_a_name_server_that_does_not_answer_is_given_up(monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(socket, "gethostbyname", lambda host: str(answered.wait()))
    with pytest.raises(OSError, match=r"not found within 0\.01 s"):
        resolve("slow.example", deadline_s=0.01)
    answered.set()
