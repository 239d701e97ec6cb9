"""The fork server of light processes: the coordinator and the agents, which need no torch.

A coordinator that was lost is back within milliseconds, because its successor is forked from here
and has all imports done.
"""

import gc
import socket
import sys

from holdfast.runtime.launch.fork_server import ForkServer, serve
from holdfast.runtime.launch.signals import ignore_signals


class LightForkServer(ForkServer):
    """The launcher's handle on it."""

    MODULE = "holdfast.runtime.launch.light_fork_server"


if __name__ == "__main__":
    ignore_signals()
    gc.disable()  # while it imports
    from holdfast.runtime.agent.agent import AgentSpec, run_agent
    from holdfast.runtime.coordinator.server import run_coordinator
    from holdfast.runtime.launch.launcher_messages import START
    from holdfast.runtime.wire.frames import HEADER_BYTES, frame_size

    def receive(sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = sock.recv(size - len(data))
            if not more:
                sys.exit(1)
            data += more
        return data

    def run_child(sock: socket.socket, own_fd: int) -> int:
        """Read what to be, and be it. Nothing beyond the first message is taken off the socket."""
        size = frame_size(receive(sock, HEADER_BYTES))
        START.check(size)
        spec = START.decode(receive(sock, size)).spec
        if isinstance(spec, AgentSpec):
            return run_agent(spec, sock, own_fd)
        return run_coordinator(spec, sock, own_fd)

    serve(int(sys.argv[1]), {"": run_child})
