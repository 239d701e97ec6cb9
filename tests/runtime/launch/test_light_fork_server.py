import socket
from pathlib import Path

import psutil
import pytest

from holdfast.runtime.launch.fork_server import Exited, Forked
from holdfast.runtime.launch.light_fork_server import LightForkServer

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_light_processes_know_nothing_of_torch(fork_server):
    maps = Path(f"/proc/{fork_server.light.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "libtorch" in Path(f"/proc/{fork_server.pid}/maps").read_text()
    assert psutil.Process(fork_server.light.pid).num_threads() == 1


def test_a_child_that_is_told_nothing_ends(tmp_path):
    with LightForkServer() as light_server:
        light_server.wait_until_warm()
        ours, theirs = socket.socketpair()
        with theirs:
            ticket = light_server.fork(theirs, tmp_path / "agent-n0.log", theirs.fileno())
        forked = light_server.receive()
        assert isinstance(forked, Forked)
        ours.close()
        assert light_server.receive() == Exited(ticket, 1)
        assert not psutil.pid_exists(forked.pid)
