import os
import signal
import socket
import struct
import threading
import time

import pytest

from holdfast.job.crew import Crew, Garbled, Gone, SignalBox, Signalled, Told, Warmed
from holdfast.job.template import Exited, Forked, TemplateGone, Warm
from holdfast.job.wire import Hello, Stop, Unpacker, pack


class FakeTemplate:
    """Forks nobody: the test holds the worker's end of the socket, and says what happened."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.notices: list[object] = []
        self.workers: list[socket.socket] = []

    def fileno(self) -> int:
        return self.ours.fileno()

    def fork(self, sock, log_fd) -> int:
        self.workers.append(sock.dup())
        return len(self.workers)

    def say(self, notice) -> None:
        self.notices.append(notice)
        self.theirs.send(b"x")

    def receive(self):
        self.ours.recv(1)
        notice = self.notices.pop(0)
        if isinstance(notice, Exception):
            raise notice
        return notice

    def close(self) -> None:
        for sock in (self.ours, self.theirs, *self.workers):
            sock.close()


@pytest.fixture
def template():
    fake = FakeTemplate()
    yield fake
    fake.close()


@pytest.fixture
def crew(template, tmp_path):
    crew = Crew(template)
    for number in range(2):
        crew.start(f"n0.g{number}", tmp_path / f"{number}.log")
    yield crew
    crew.close()


def soon() -> float:
    return time.monotonic() + 5


def test_messages_come_with_their_worker(crew, template):
    template.workers[1].sendall(pack(Hello(pid=7)) + pack(Hello(pid=8)))
    assert crew.wait(soon()) == [Told("n0.g1", Hello(pid=7)), Told("n0.g1", Hello(pid=8))]


def test_what_is_no_message_is_told_of_its_worker(crew, template):
    template.workers[0].sendall(struct.pack(">I", 2**31))
    (notice,) = crew.wait(soon())
    assert isinstance(notice, Garbled)
    assert notice.worker == "n0.g0"
    assert "2147483648 bytes" in notice.why


def test_nothing_happens_until_the_deadline(crew):
    assert crew.wait(time.monotonic() + 0.01) == []
    assert crew.wait(time.monotonic() - 1) == []


def test_last_words_come_before_the_end(crew, template):
    template.workers[0].sendall(pack(Hello(pid=7)))
    template.workers[0].close()
    template.say(Exited(1, -9))
    heard = []
    while len(heard) < 2:
        heard += crew.wait(soon())
    assert heard == [Told("n0.g0", Hello(pid=7)), Gone("n0.g0", -9)]
    assert crew.alive == ["n0.g1"]
    crew.send(["n0.g0", "n0.g1"], Stop())
    (message,) = Unpacker().feed(template.workers[1].recv(100))
    assert message == Stop()


def test_pids_and_warmth(crew, template):
    template.say(Forked(2, 4321))
    template.say(Warm())
    assert crew.wait(soon()) == [Warmed()]
    assert crew.pids == {"n0.g0": 0, "n0.g1": 4321}


def test_an_earlier_crew_of_the_same_template_is_not_meant(crew, template):
    template.say(Forked(99, 1))
    template.say(Exited(99, 0))
    template.say(Warm())
    assert crew.wait(soon()) == [Warmed()]


def test_sending_to_somebody_who_is_gone_is_no_error(crew, template):
    template.workers[0].close()
    crew.send(["n0.g0"], Stop())
    crew.send(["n0.g0"], Stop())


def test_a_template_that_ends_is_not_waited_for(crew, template):
    template.say(TemplateGone("gone"))
    with pytest.raises(TemplateGone):
        crew.wait(soon())
    template.say(TemplateGone("gone"))
    crew.end()


def test_signals_come_as_notices_and_handlers_come_back(template):
    before = signal.getsignal(signal.SIGTERM)
    crew = Crew(template)
    os.kill(os.getpid(), signal.SIGTERM)
    assert crew.wait(soon()) == [Signalled(signal.SIGTERM)]
    crew.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_only_the_main_thread_has_signals():
    boxes: list[SignalBox] = []
    thread = threading.Thread(target=lambda: boxes.append(SignalBox()))
    thread.start()
    thread.join()
    assert boxes[0].drain() == []
    boxes[0].close()
