"""Signals as something to wait for, beside sockets."""

import signal
import socket
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
