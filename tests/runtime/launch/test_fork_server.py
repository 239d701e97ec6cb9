import os
import select
import signal
import socket

import psutil
import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.launch.fork_server import (
    Exited,
    Forked,
    ForkServer,
    ForkServerGone,
    check_in_child,
)
from holdfast.runtime.wire.frames import FROM_WORKER, Channel
from holdfast.runtime.wire.messages import Hello

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def fork(fork_server, tmp_path):
    """A worker's pid, and the channel to it."""
    channels = []

    def fork():
        ours, theirs = socket.socketpair()
        with theirs:
            ticket = fork_server.fork(theirs, tmp_path / "n0.g0.log")
        notice = fork_server.receive()
        assert isinstance(notice, Forked)
        assert notice.ticket == ticket
        channels.append(Channel(ours, FROM_WORKER))
        return notice.pid, channels[-1]

    yield fork
    for channel in channels:
        channel.close()


def test_it_has_one_thread_and_everything_imported(fork_server, fork):
    assert psutil.Process(fork_server.pid).num_threads() == 1
    pid, channel = fork()
    assert channel.receive() == Hello(pid=pid)
    assert psutil.Process(pid).ppid() == fork_server.pid
    channel.close()
    assert fork_server.receive() == Exited(fork_server._next_ticket, 1)
    assert not psutil.pid_exists(pid)


def test_a_killed_worker_is_seen_at_once_and_reaped(fork_server, fork):
    pid, channel = fork()
    assert channel.receive() == Hello(pid=pid)
    os.kill(pid, signal.SIGKILL)
    assert fork_server.receive() == Exited(fork_server._next_ticket, -signal.SIGKILL)
    assert channel.receive() is None
    assert psutil.Process(fork_server.pid).children() == []


def test_the_end_of_a_worker_shows_before_its_other_files_are_closed(fork_server, fork):
    """Files are closed from the highest number down; those of a device take long."""
    pid, channel = fork()
    assert channel.receive() == Hello(pid=pid)
    highest = max(int(number) for number in os.listdir(f"/proc/{pid}/fd"))
    assert os.readlink(f"/proc/{pid}/fd/{highest}").startswith("socket:")
    os.kill(pid, signal.SIGKILL)
    assert isinstance(fork_server.receive(), Exited)


def test_keys_in_the_terminal_do_not_reach_workers(fork_server, fork):
    pid, channel = fork()
    assert channel.receive() == Hello(pid=pid)
    for process in (pid, fork_server.pid):
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
    assert psutil.Process(pid).is_running()
    channel.close()
    assert fork_server.receive() == Exited(fork_server._next_ticket, 1)


def test_a_fork_server_that_cannot_start_says_why(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch today')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ForkServer() as cold, pytest.raises(ForkServerGone) as caught:
        cold.wait_until_warm()
    assert str(caught.value) == "exit status 1: ImportError: no torch today"


def test_one_who_dies_before_it_has_read_all_does_not_take_the_fork_server_with_it(
    fork_server, fork
):
    control = fork_server.attach()
    assert select.select([control], [], [], 10.0)[0], "it is told that all is warm"
    control.close()
    _, channel = fork()
    channel.close()
    assert isinstance(fork_server.receive(), Exited)


def test_a_check_in_a_child_says_whether_it_passes(capfd):
    def refuse():
        raise HoldfastError("torch 9 is not supported")

    def crash():
        raise KeyError("x")

    assert check_in_child(lambda: None)
    assert not check_in_child(refuse)
    assert capfd.readouterr().err == "torch 9 is not supported\n"
    assert not check_in_child(crash)
