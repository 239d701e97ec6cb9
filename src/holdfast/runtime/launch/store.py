"""The store through which workers find each other: in a process of its own, so that it outlives
any worker, and bound to the job's interface only, since it asks for no password. The launcher keeps
the socket and starts it again when it is lost; groups that exist by then do not need it.

The process is forked where torch is imported already. The launcher, which would otherwise need
torch for the store alone, starts seconds earlier.
"""

import queue
import socket
import threading
from contextlib import suppress
from typing import Any

from holdfast.errors import HoldfastError

RESOLVE_DEADLINE_S = 2.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything else is started: the port may be taken."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((resolve(host), port))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        raise HoldfastError(
            f"job.port = {port} on job.host = {host!r} cannot be used: {error.strerror or error}; "
            f"choose another port, or 0 for any free one"
        ) from None
    return listener


def resolve(host: str, deadline_s: float = RESOLVE_DEADLINE_S) -> str:
    """The address of a host; a name server that does not answer is given up after a while."""
    found: queue.SimpleQueue[str | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put(socket.gethostbyname(host))
        except OSError as error:
            found.put(error)

    threading.Thread(target=ask, daemon=True, name="resolve").start()
    try:
        answer = found.get(timeout=deadline_s)
    except queue.Empty:
        raise OSError(f"its address was not found within {deadline_s:g} s") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def serve_store(listener: socket.socket) -> Any:
    """Serve on a bound socket, which it takes over. The server goes with the object."""
    import torch.distributed as dist  # here: the launcher binds and resolves without torch

    host, port = listener.getsockname()[:2]
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def run_store(sock: socket.socket, listener_fd: int) -> int:
    """Serve, in a process forked for it, until the other end of `sock` is closed."""
    store = serve_store(socket.socket(fileno=listener_fd))
    with suppress(ConnectionError):
        sock.recv(1)
    del store
    return 0


def connect_store(host: str, port: int) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, wait_for_workers=False
    )
