"""Signals as something to wait for, beside sockets, and what each of them means.

Only the launcher acts on signals; all other processes of a job ignore them, since terminals and
schedulers send them to whole process groups. What a signal asks for is a setting:

    stop        write a checkpoint, end cleanly, within the grace time
    stop_now    end at once
    checkpoint  write a checkpoint and go on
    stacks      print where every process is, and go on
    ignore      nothing
"""

import signal
import socket
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, Literal

SignalAction = Literal["stop", "stop_now", "checkpoint", "stacks", "ignore"]
SignalName = Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"]
DEFAULT_ACTIONS: dict[SignalName, SignalAction] = {
    "SIGTERM": "stop",
    "SIGINT": "stop",
    "SIGHUP": "stop",
    "SIGUSR1": "stop",
    "SIGUSR2": "stop",
    "SIGQUIT": "stacks",
}
SIGNALS = tuple(signal.Signals[name] for name in DEFAULT_ACTIONS)
PRINT_STACKS = signal.SIGRTMIN + 3
"""From the launcher to the other processes of a job."""


def ignore_signals() -> None:
    """In all processes of a job but the launcher; one that can print its stacks says so later."""
    for number in (*SIGNALS, PRINT_STACKS):
        signal.signal(number, signal.SIG_IGN)


def exit_code(number: int) -> int:
    """Of a run that was stopped by a signal, as shells have it."""
    return 128 + number


def actions(chosen: Mapping[SignalName, SignalAction]) -> dict[int, SignalAction]:
    """By number: what was chosen, and the default for all others."""
    named = {**DEFAULT_ACTIONS, **chosen}
    return {signal.Signals[name]: action for name, action in named.items()}


class StoppedEarly(BaseException):
    """A signal that asks for a stop, before there is a job to stop. (Not an Exception: whatever is
    being imported must not take it for an error of its own.)
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"{signal.Signals(number).name} before the start")
        self.exit_code = exit_code(number)


class SignalBox:
    """Signals as bytes in a socket, while it is open; a context manager. Only the main thread can
    have them. A hangup that is ignored already (nohup) stays so.

    Until it is told that the job has begun, a signal that asks for a stop is raised: reading and
    checking a job, and importing what trains it, may take longer than a grace time.
    """

    def __init__(self) -> None:
        self.inbox, self._outbox = socket.socketpair()
        self.inbox.setblocking(False)
        self._outbox.setblocking(False)
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._actions = actions({})
        self._has_begun = False
        if threading.current_thread() is threading.main_thread():
            self._fd_before = signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
            wanted = [number for number in SIGNALS if not _is_without_terminal(number)]
            self._before = {number: signal.signal(number, self._raise) for number in wanted}

    def expect(self, chosen: Mapping[SignalName, SignalAction]) -> None:
        """What signals mean in this job."""
        self._actions = actions(chosen)

    def begin(self) -> None:
        """From now on all is read from the socket."""
        self._has_begun = True

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if not self._has_begun and self._actions[number] in ("stop", "stop_now"):
            raise StoppedEarly(number)

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

    def __enter__(self) -> "SignalBox":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def _is_without_terminal(number: int) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
