"""The template: a process that has imported everything, and from which workers are forked.

Importing torch takes seconds, forking a process that has it takes milliseconds. The template
imports, starts no thread, touches no device, and then only forks and reaps. It is a process of
its own, apart from the launcher, which may have threads.

    launcher                          template                        worker
       | Popen                           |
       |-------------------------------->| import torch, engine, models
       |<------------------------- Warm  |
       | Fork + 2 file descriptors ----->| fork ------------------------->|
       |<------------------------ Forked |                                | runs `worker.main`
       |<------------------ Exited(code) | <------ waitpid -------------- |

Nobody stays behind: the template ends when its end of the control socket does, which is when the
launcher closes it or dies; a worker is killed by the kernel when the template ends. (The standard
library's fork server gives every child a copy of the descriptor that keeps the server alive, so
there killing the launcher leaves all of them running; and it runs the main script again in each.)
"""

import ctypes
import faulthandler
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

import msgspec

from holdfast.errors import HoldfastError

MAX_PACKET_BYTES = 4096
WARM_DEADLINE_S = 120.0
_PR_SET_PDEATHSIG = 1


class Warm(msgspec.Struct, frozen=True, tag=True):
    pass


class Fork(msgspec.Struct, frozen=True, tag=True):
    """With two descriptors: the worker's socket, and the file for what it prints."""

    ticket: int


class Forked(msgspec.Struct, frozen=True, tag=True):
    ticket: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    ticket: int
    status: int
    """Exit code, or minus the signal that ended it."""


Notice = Warm | Forked | Exited
_NOTICES = msgspec.msgpack.Decoder(Notice)
_ORDERS = msgspec.msgpack.Decoder(Fork)


class TemplateGone(Exception):
    """The template process ended."""


class Template:
    """The launcher's handle on the template process. Use it as a context manager."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What it prints is of interest only if it fails.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        # No pool of threads for numpy: workers are forked from here.
        # And no long wait for a name server: the store looks up every peer that connects.
        environment = {"RES_OPTIONS": "timeout:1 attempts:1"} | os.environ
        environment["OPENBLAS_NUM_THREADS"] = "1"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.job.template", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment,
            )
        self.is_warm = False
        self._next_ticket = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._control.fileno()

    def fork(self, sock: socket.socket, log_fd: int) -> int:
        """Ask for a worker; its ticket comes back in `Forked` and `Exited`."""
        self._next_ticket += 1
        order = msgspec.msgpack.encode(Fork(self._next_ticket))
        try:
            socket.send_fds(self._control, [order], [sock.fileno(), log_fd])
        except OSError:
            raise TemplateGone(self.last_words()) from None
        return self._next_ticket

    def receive(self) -> Notice:
        """The next notice; call it when the descriptor is readable."""
        try:
            data = self._control.recv(MAX_PACKET_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            raise TemplateGone(self.last_words())
        notice: Notice = _NOTICES.decode(data)
        self.is_warm = self.is_warm or isinstance(notice, Warm)
        return notice

    def wait_until_warm(self, deadline_s: float = WARM_DEADLINE_S) -> None:
        """For those who have nothing else to listen to."""
        if not self.is_warm:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if not poll.poll(1000 * deadline_s):
                raise HoldfastError(f"the template process was not ready within {deadline_s:g} s")
            self.receive()

    def last_words(self) -> str:
        """How it ended and the last line it printed."""
        try:
            status = f"exit status {self._process.wait(5)}"
        except subprocess.TimeoutExpired:
            status = "it still runs, but does not answer"
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").split("\n")
        printed = [line for line in lines if line.strip()]
        return f"{status}: {printed[-1]}" if printed else status

    def close(self) -> None:
        """End it, and with it every worker that is left."""
        self._control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def __enter__(self) -> "Template":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


# The template process itself.


class _Server:
    def __init__(self, control: socket.socket, run_worker: Callable[[socket.socket], int]) -> None:
        self._control, self._run_worker = control, run_worker
        self._pid = os.getpid()
        self._ticket_of: dict[int, int] = {}
        # Bytes appear here when a child ends.
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)

    def serve(self) -> None:
        self._tell(Warm())
        while True:
            readable, _, _ = select.select([self._control.fileno(), self._wake_in], [], [])
            if self._wake_in in readable:
                with suppress(BlockingIOError):
                    os.read(self._wake_in, 4096)
                self._reap()
            if self._control.fileno() in readable and not self._take_order():
                return

    def _tell(self, notice: Notice) -> None:
        # A launcher that is gone shows as the end of the control socket.
        with suppress(ConnectionError):
            self._control.send(msgspec.msgpack.encode(notice))

    def _take_order(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, 2)
        if not data:
            return False
        ticket = _ORDERS.decode(data).ticket
        pid = os.fork()
        if pid == 0:
            self._become_worker(fds)
        for fd in fds:
            os.close(fd)
        self._ticket_of[pid] = ticket
        self._tell(Forked(ticket, pid))
        return True

    def _become_worker(self, fds: list[int]) -> None:
        """In the child; never returns."""
        code = 1
        try:
            die_with_parent(self._pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._wake_in, self._wake_out):
                os.close(fd)
            self._control.close()
            sock_fd, log_fd = fds
            for standard in (1, 2):
                os.dup2(log_fd, standard)
            os.close(log_fd)
            faulthandler.enable()
            code = self._run_worker(socket.socket(fileno=sock_fd))
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._ticket_of:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            ticket = self._ticket_of.pop(pid)
            self._tell(Exited(ticket, os.waitstatus_to_exitcode(status)))

    def end(self) -> None:
        for pid in self._ticket_of:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._ticket_of:
            os.waitpid(pid, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def serve(control_fd: int) -> None:
    # A key pressed in the terminal reaches everybody; the launcher decides what it means.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    from holdfast.job.worker import run_worker

    # What is there now lives for ever: no worker shall go through it again, or copy its pages.
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=control_fd)
    server = _Server(control, run_worker)
    try:
        server.serve()
    finally:
        server.end()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
