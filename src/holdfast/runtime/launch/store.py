"""The store through which workers find each other: served by the launcher, so that it outlives
any worker, and bound to the job's interface only, since it asks for no password.
"""

import socket
from typing import Any

import torch.distributed as dist

from holdfast.errors import HoldfastError


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything else is started: the port may be taken."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise HoldfastError(
            f"job.port = {port} on job.host = {host!r} cannot be used: {error.strerror or error}; "
            f"choose another port, or 0 for any free one"
        ) from None
    return listener


def serve_store(listener: socket.socket) -> Any:
    """Serve on a bound socket, which it takes over. The server goes with the object."""
    host, port = listener.getsockname()[:2]
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def connect_store(host: str, port: int) -> Any:
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, wait_for_workers=False
    )
