import os
import select
import signal
import socket

import psutil
import pytest

from holdfast.runtime.launch.fork_server import Exited, Forked, Template, TemplateGone
from holdfast.runtime.wire.frames import FROM_WORKER, Channel
from holdfast.runtime.wire.messages import Hello

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def fork(template, tmp_path):
    """A worker's pid, and the channel to it."""
    channels = []

    def fork():
        ours, theirs = socket.socketpair()
        with theirs, (tmp_path / "log").open("wb") as log:
            ticket = template.fork(theirs, log.fileno())
        notice = template.receive()
        assert isinstance(notice, Forked)
        assert notice.ticket == ticket
        channels.append(Channel(ours, FROM_WORKER))
        return notice.pid, channels[-1]

    yield fork
    for channel in channels:
        channel.close()


def test_it_has_one_thread_and_everything_imported(template, fork):
    assert psutil.Process(template.pid).num_threads() == 1
    pid, channel = fork()
    assert channel.receive() == Hello(pid=pid)
    assert psutil.Process(pid).ppid() == template.pid
    channel.close()
    assert template.receive() == Exited(template._next_ticket, 1)
    assert not psutil.pid_exists(pid)


def test_a_killed_worker_is_seen_at_once_and_reaped(template, fork):
    pid, channel = fork()
    assert channel.receive() == Hello(pid=pid)
    os.kill(pid, signal.SIGKILL)
    assert template.receive() == Exited(template._next_ticket, -signal.SIGKILL)
    assert channel.receive() is None
    assert psutil.Process(template.pid).children() == []


def test_keys_in_the_terminal_do_not_reach_workers(template, fork):
    pid, channel = fork()
    assert channel.receive() == Hello(pid=pid)
    for process in (pid, template.pid):
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
    assert psutil.Process(pid).is_running()
    channel.close()
    assert template.receive() == Exited(template._next_ticket, 1)


def test_a_template_that_cannot_start_says_why(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch today')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Template() as cold, pytest.raises(TemplateGone) as caught:
        cold.wait_until_warm()
    assert str(caught.value) == "exit status 1: ImportError: no torch today"


def test_one_who_dies_before_it_has_read_all_does_not_take_the_template_with_it(template, fork):
    control = template.attach()
    assert select.select([control], [], [], 10.0)[0], "it is told that all is warm"
    control.close()
    _, channel = fork()
    channel.close()
    assert isinstance(template.receive(), Exited)
