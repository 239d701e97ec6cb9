import asyncio
import os
import signal
import subprocess

import pytest

from holdfast.control.effects import StepsRecorded
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import SnapshotEvery
from holdfast.runtime.agent.workers import WorkerProcess, read_process
from holdfast.runtime.wire.frames import pack


def test_a_process_as_the_kernel_sees_it():
    here = read_process(os.getpid())
    assert here is not None
    assert here.state == "R"
    while read_process(os.getpid()).cpu_ms <= here.cpu_ms:
        pass


@pytest.mark.process
def test_a_stopped_process():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        os.kill(child.pid, signal.SIGSTOP)
        while read_process(child.pid).state != "T":
            pass
        os.kill(child.pid, signal.SIGCONT)
        child.communicate()
    assert read_process(child.pid) is None


@pytest.mark.process
@pytest.mark.parametrize(("script", "status"), [("kill -9 $$", -9), ("exit 3", 3)])
def test_how_a_process_ends_is_known_before_it_is_reaped(script, status):
    assert read_process(os.getpid()).ends_with is None
    with subprocess.Popen(["sh", "-c", script]) as child:
        while (found := read_process(child.pid).ends_with) is None:
            pass
        assert found == status
        assert child.wait() == status


class StandIn:
    """A fork server whose children are nothing but the end of a socket."""

    def fork(self, sock, log, *fds):
        self.socket = sock.dup()
        return 1


def test_the_assignment_is_the_first_message_whatever_was_sent_before(tmp_path):
    """To a process that has just been forked; the other messages follow in their order."""
    early, late = SnapshotEvery(every=2), SnapshotEvery(every=4)
    assignment = StepsRecorded(step=0)  # any message will do

    async def story():
        server = StandIn()
        worker = WorkerProcess(Member("n0.g0", 1), server, tmp_path / "log", lambda *_: None)
        worker.send_later(early)
        worker.assign(assignment)
        worker.send_later(late)
        with server.socket as child:
            received = child.recv(4096)
        worker.give_back()
        return received

    assert asyncio.run(story()) == pack(assignment) + pack(early) + pack(late)
