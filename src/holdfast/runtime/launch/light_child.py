"""A child that is told what to be: an agent, or a coordinator."""

import socket
import sys

from holdfast.runtime.agent.agent import AgentSpec, run_agent
from holdfast.runtime.coordinator.server import run_coordinator
from holdfast.runtime.launch.launcher_messages import START
from holdfast.runtime.wire.frames import HEADER_BYTES, frame_size


def run_light_child(sock: socket.socket, own_fd: int) -> int:
    """Read what to be, and be it. Nothing beyond the first message is taken off the socket."""
    size = frame_size(_receive(sock, HEADER_BYTES))
    START.check(size)
    spec = START.decode(_receive(sock, size)).spec
    if isinstance(spec, AgentSpec):
        return run_agent(spec, sock, own_fd)
    return run_coordinator(spec, sock, own_fd)


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            sys.exit(1)
        data += more
    return data
