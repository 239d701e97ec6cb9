"""The end of a job, step by step: who is told, who is waited for, and who is named."""

import asyncio
from types import SimpleNamespace

import pytest

from holdfast.runtime.coordinator import shutdown
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.shutdown import Shutdown
from holdfast.runtime.launch.launcher_messages import Ending
from holdfast.runtime.wire.messages import EndNode


class Recorder:
    """Both ends that are told: what was sent, and when it was closed."""

    def __init__(self, log, name):
        self._log, self._name, self.sent = log, name, []

    def send(self, message):
        self.sent.append(message)
        self._log.append(f"{type(message).__name__} to {self._name}")
        return 10

    def close(self):
        self._log.append(f"{self._name} closed")


class Disk:
    unwritten = 0

    async def write_last(self):
        return self.unwritten


class End:
    """A job of two nodes at its end; `finishing` workers have not left yet."""

    def __init__(self, *finishing, is_stopping=False):
        self.log = []
        self.view = SimpleNamespace(finishing=list(finishing), is_stopping=is_stopping)
        self.dispatch, self.ends = Dispatch(), {}
        for node in ("n0", "n1"):
            self.ends[node] = Recorder(self.log, node)
            self.dispatch.connect(node, self.ends[node])
        self.disk, self.launcher = Disk(), Recorder(self.log, "launcher")
        self.shutdown = Shutdown(self.view, self.dispatch, self.disk, self.launcher, None)

    def hang_up(self, node):
        self.log.append(f"{node} hangs up")
        self.dispatch.disconnect(node, self.ends[node])
        self.shutdown.wake()

    def leave(self, worker):
        self.log.append(f"{worker} leaves")
        self.view.finishing.remove(worker)
        self.shutdown.wake()

    def run(self, *actions, outcome="finished"):
        """Each action once the shutdown waits for something."""

        async def live():
            task = asyncio.create_task(self.shutdown.run(Ending(outcome=outcome, reason="")))
            for action in actions:
                for _ in range(10):
                    await asyncio.sleep(0)
                action()
            await task

        asyncio.run(live())
        return self.log


@pytest.fixture
def short(monkeypatch):
    for name in ("HANG_UP_S", "LEAVE_DEADLINE_S", "STOP_DEADLINE_S"):
        monkeypatch.setattr(shutdown, name, 0.01)


TOLD = ["EndNode to n0", "EndNode to n1", "Ending to launcher"]


def test_no_connection_is_closed_before_its_agent_has_hung_up():
    """What was sent last would be lost with it, if something in it was unread."""
    end = End()
    log = end.run(lambda: end.hang_up("n1"), lambda: end.hang_up("n0"))
    assert log == [*TOLD, "n1 hangs up", "n0 hangs up", "launcher closed"]


def test_an_agent_that_does_not_hang_up_is_named(short, caplog):
    end = End()
    log = end.run(lambda: end.hang_up("n0"))
    assert log == [*TOLD, "n0 hangs up", "n1 closed", "launcher closed"]
    assert "the agents of n1 did not hang up within 0.01 s" in caplog.text


def test_workers_leave_before_their_agents_are_told():
    end = End("n0.g0", "n1.g0")
    log = end.run(
        lambda: end.leave("n1.g0"),
        lambda: end.leave("n0.g0"),
        lambda: end.hang_up("n0"),
        lambda: end.hang_up("n1"),
    )
    assert log[:5] == ["n1.g0 leaves", "n0.g0 leaves", *TOLD]


def test_workers_of_an_agent_that_is_cut_off_are_not_waited_for():
    end = End("n1.g0")
    log = end.run(lambda: end.hang_up("n1"), lambda: end.hang_up("n0"))
    assert log[:2] == ["n1 hangs up", "EndNode to n0"]


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_worker_that_does_not_leave_is_named(is_stopping, short, caplog):
    end = End("n1.g0", is_stopping=is_stopping)
    assert end.run()[:3] == TOLD
    assert "n1.g0 did not leave within 0.01 s" in caplog.text


def test_a_job_that_failed_waits_for_no_worker():
    end = End("n1.g0")
    log = end.run(lambda: end.hang_up("n0"), lambda: end.hang_up("n1"), outcome="failed")
    assert log[:3] == TOLD


@pytest.mark.parametrize(
    ("ending", "is_useless"),
    [
        (Ending(outcome="finished", reason=""), True),
        (Ending(outcome="stopped", reason=""), False),
        (Ending(outcome="failed", reason="", is_state_lost=True), True),
    ],
)
def test_memory_is_kept_for_a_run_that_can_go_on(ending, is_useless, short):
    end = End()
    asyncio.run(end.shutdown.run(ending))
    assert end.ends["n0"].sent == [EndNode(is_memory_useless=is_useless)]


def test_what_the_disk_did_not_take_is_told():
    end = End()
    end.disk.unwritten = 3
    end.run(lambda: end.hang_up("n0"), lambda: end.hang_up("n1"))
    assert [ending.unwritten for ending in end.launcher.sent] == [3]
