import socket
from pathlib import Path

import psutil
import pytest

from holdfast.runtime.launch.fork_server import Exited, Forked
from holdfast.runtime.launch.light_fork_server import Nursery

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_light_processes_know_nothing_of_torch(template):
    maps = Path(f"/proc/{template.nursery.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "libtorch" in Path(f"/proc/{template.pid}/maps").read_text()
    assert psutil.Process(template.nursery.pid).num_threads() == 1


def test_a_child_that_is_told_nothing_ends(tmp_path):
    with Nursery() as nursery:
        nursery.wait_until_warm()
        ours, theirs = socket.socketpair()
        with theirs, (tmp_path / "log").open("wb") as log:
            ticket = nursery.fork(theirs, log.fileno(), log.fileno())
        forked = nursery.receive()
        assert isinstance(forked, Forked)
        ours.close()
        assert nursery.receive() == Exited(ticket, 1)
        assert not psutil.pid_exists(forked.pid)
