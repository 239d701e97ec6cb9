"""The nursery: the template of light processes, coordinator and agents, which need no torch.

A coordinator that was lost is back within milliseconds, because its successor is forked from here
and has imported everything.
"""

import socket
import sys

from holdfast.job.template import Template, ignore_terminal, serve


class Nursery(Template):
    """The launcher's handle on it."""

    MODULE = "holdfast.job.nursery"


if __name__ == "__main__":
    ignore_terminal()
    from holdfast.job.agent import AgentSpec, run_agent
    from holdfast.job.coordinator import run_coordinator
    from holdfast.job.supervision import START
    from holdfast.job.wire import HEADER_BYTES, frame_size

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

    serve(int(sys.argv[1]), run_child)
