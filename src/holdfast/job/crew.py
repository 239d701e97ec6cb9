"""The local workers as the launcher sees them: started, listened to, told things, ended.

One selector watches the sockets of all workers, the template (which sees them exit) and the
signals. `wait` gives back what happened; it decides nothing.
"""

import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from holdfast.job.template import Exited, Forked, Template, TemplateGone
from holdfast.job.wire import Message, Unpacker, WireError, pack

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SEND_DEADLINE_S = 10.0
END_DEADLINE_S = 10.0


class Told(msgspec.Struct, frozen=True):
    """A worker sent a message."""

    worker: str
    message: Message


class Garbled(msgspec.Struct, frozen=True):
    """A worker sent something else."""

    worker: str
    why: str


class Gone(msgspec.Struct, frozen=True):
    """A worker's process ended."""

    worker: str
    status: int
    """Exit code, or minus the signal that ended it."""


class Signalled(msgspec.Struct, frozen=True):
    number: int


class Warmed(msgspec.Struct, frozen=True):
    """The template is ready to fork."""


Notice = Told | Garbled | Gone | Signalled | Warmed


class _Worker:
    def __init__(self, name: str, ticket: int, sock: socket.socket) -> None:
        self.name, self.ticket, self.socket = name, ticket, sock
        self.unpacker = Unpacker()
        self.pid = 0
        self.is_alive = True


def _ignore(number: int, frame: FrameType | None) -> None:
    """What is to be done is read from the socket."""


class SignalBox:
    """Signals as bytes in a socket, while it is open. Only the main thread can have them."""

    def __init__(self) -> None:
        self.inbox, self._outbox = socket.socketpair()
        self.inbox.setblocking(False)
        self._outbox.setblocking(False)
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        if threading.current_thread() is threading.main_thread():
            self._fd_before = signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, _ignore) for number in SIGNALS}

    def drain(self) -> list[int]:
        """The numbers of the signals that came; the interpreter writes them as bytes."""
        try:
            return [number for number in self.inbox.recv(4096) if number in SIGNALS]
        except BlockingIOError:
            return []

    def close(self) -> None:
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.inbox.close()
        self._outbox.close()


class Crew:
    """Use it as a context manager: whatever happens, no worker outlives it."""

    def __init__(self, template: Template, clock: Callable[[], float] = time.monotonic) -> None:
        self._template, self._clock = template, clock
        self._workers: dict[str, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._signals = SignalBox()
        self._selector.register(template, selectors.EVENT_READ, self._hear_template)
        self._selector.register(self._signals.inbox, selectors.EVENT_READ, self._hear_signals)

    def start(self, worker: str, log: Path) -> None:
        """Have a worker forked; it says hello by itself."""
        ours, theirs = socket.socketpair()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log_fd = os.open(log, flags, 0o644)
        try:
            ticket = self._template.fork(theirs, log_fd)
        finally:
            theirs.close()
            os.close(log_fd)
        ours.settimeout(SEND_DEADLINE_S)
        self._workers[worker] = _Worker(worker, ticket, ours)
        self._selector.register(ours, selectors.EVENT_READ, self._workers[worker])

    @property
    def alive(self) -> list[str]:
        return [worker.name for worker in self._workers.values() if worker.is_alive]

    @property
    def pids(self) -> dict[str, int]:
        return {worker.name: worker.pid for worker in self._workers.values()}

    def send(self, workers: Sequence[str], message: Message) -> None:
        """To those that still listen; who does not is seen to exit."""
        data = pack(message)
        for name in workers:
            worker = self._workers[name]
            if worker.is_alive:
                with suppress(OSError):
                    worker.socket.sendall(data)

    def wait(self, deadline: float) -> list[Notice]:
        """What happened, at least one thing; nothing once the clock has passed `deadline`."""
        notices: list[Notice] = []
        while not notices:
            left = deadline - self._clock()
            if left <= 0:
                break
            for key, _ in self._selector.select(left):
                source = key.data
                notices += self._hear_worker(source) if isinstance(source, _Worker) else source()
        return notices

    def _hear_signals(self) -> Iterator[Notice]:
        return (Signalled(number) for number in self._signals.drain())

    def _hear_template(self) -> Iterator[Notice]:
        match self._template.receive():
            case Forked(ticket, pid):
                for worker in self._by_ticket(ticket):
                    worker.pid = pid
            case Exited(ticket, status):
                for worker in self._by_ticket(ticket):
                    # What it said before it ended comes first.
                    while worker.socket.fileno() >= 0:
                        yield from self._hear_worker(worker)
                    worker.is_alive = False
                    yield Gone(worker.name, status)
            case _:
                yield Warmed()

    def _by_ticket(self, ticket: int) -> list[_Worker]:
        """None, if it belongs to an earlier crew of the same template."""
        return [worker for worker in self._workers.values() if worker.ticket == ticket]

    def _hear_worker(self, worker: _Worker) -> Iterator[Notice]:
        if worker.socket.fileno() < 0:  # closed by something that came before in this round
            return
        try:
            data = worker.socket.recv(2**18)
        except (ConnectionError, TimeoutError):
            data = b""
        if not data:
            # How it ended comes from the template.
            self._hang_up(worker)
            return
        try:
            for message in worker.unpacker.feed(data):
                yield Told(worker.name, message)
        except WireError as error:
            yield Garbled(worker.name, str(error))

    def _hang_up(self, worker: _Worker) -> None:
        if worker.socket.fileno() >= 0:
            self._selector.unregister(worker.socket)
            worker.socket.close()

    def end(self) -> None:
        """Kill whoever is left, and see that they are gone."""
        for worker in self._workers.values():
            if worker.is_alive and worker.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
            # One that is only just being forked has no number yet, but notices this.
            self._hang_up(worker)
        deadline = self._clock() + END_DEADLINE_S
        # Without the template the kernel has ended them already.
        with suppress(TemplateGone):
            while self.alive and self.wait(deadline):
                pass

    def close(self) -> None:
        for worker in self._workers.values():
            worker.socket.close()
        self._selector.close()
        self._signals.close()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *args: object) -> None:
        try:
            self.end()
        finally:
            self.close()
