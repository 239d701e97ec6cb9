"""The fork server: a process that has imported torch, and from which workers are forked.

Importing torch takes seconds, forking a process that has it takes milliseconds. The fork server
imports, starts no thread, touches no device, and then only forks and reaps. It is a process of
its own, apart from the launcher and the agents, which may have threads.

    launcher                          fork server                     worker
       | Popen                           |
       |-------------------------------->| import torch, engine, models
       |<------------------------- Warm  |
       | Attach + a socket ------------->|                  agent
       |                                 |<-- Fork + 3 fds -- |
       |                                 | fork ------------------------->|
       |                                 | --- Forked ------->|           | runs `worker.run_worker`
       |                                 | --- Exited(code) ->|<- waitpid |

The holder of a control socket may fork, and receives notices of its own children only. No child
outlives its owner: the fork server ends when its first control socket ends, which is when the
launcher closes it or dies; the children of a control socket are killed when that socket ends, so a
node's workers die with their agent; and the kernel kills all children when the fork server itself
ends. (The standard library's fork server gives every child a copy of the descriptor that keeps the
server alive, so killing the launcher leaves all of them running; and it runs the main script again
in each.)
"""

import ctypes
import faulthandler
import fcntl
import gc
import importlib
import logging
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from holdfast.errors import HoldfastError
from holdfast.runtime.launch.signals import PRINT_STACKS, ignore_signals
from holdfast.runtime.record.logs import open_log, start_logging

if TYPE_CHECKING:
    from holdfast.runtime.launch.light_fork_server import LightForkServer

MAX_PACKET_BYTES = 8192
MAX_FDS = 3
WARM_DEADLINE_S = 120.0
STORE = "store"
"""The role of the child that serves the store."""
COORDINATOR = "coordinator"
"""Of one that coordinates the job, on any host that has joined it."""
_PR_SET_PDEATHSIG = 1
_MAX_FDS = 1024
"""A table of descriptors is as long as the highest of them."""
_LOG = logging.getLogger("holdfast.runtime.launch.fork_server")  # this module runs as __main__

RunChild = Callable[[socket.socket, int], int]
"""What a child runs, given its socket and its third descriptor (-1: none); its exit code."""


class Warm(msgspec.Struct, frozen=True, tag=True):
    pass


class Fork(msgspec.Struct, frozen=True, tag=True):
    """With descriptors: the child's socket, the file for what it prints, and one of its own."""

    ticket: int
    log: str
    """The path of that file; the child logs there and to a file of JSON lines beside it."""
    role: str = ""
    """Which of the fork server's kinds of children; empty: the usual one."""


class Attach(msgspec.Struct, frozen=True, tag=True):
    """With a descriptor: one more control socket."""


class Settle(msgspec.Struct, frozen=True, tag=True):
    """Report when all children of control sockets that have ended are reaped."""


class ForkServerIdle(msgspec.Struct, frozen=True, tag=True):
    pass


class Forked(msgspec.Struct, frozen=True, tag=True):
    ticket: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    ticket: int
    status: int
    """Exit code, or minus the signal that ended it."""


ForkNotice = Warm | Forked | Exited | ForkServerIdle
_NOTICES = msgspec.msgpack.Decoder(ForkNotice)
_ORDERS = msgspec.msgpack.Decoder(Fork | Attach | Settle)


class ForkServerGone(Exception):
    """The fork server ended."""


class Forker:
    """One control socket: asks for children, and receives notices of them."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.is_warm = False
        self._next_ticket = 0

    def fileno(self) -> int:
        return self._control.fileno()

    def fork(self, sock: socket.socket, log: Path, *fds: int, role: str = "") -> int:
        """Ask for a child; its ticket comes back in `Forked` and `Exited`."""
        self._next_ticket += 1
        log_fd = open_log(log)
        try:
            order = Fork(self._next_ticket, str(log.absolute()), role)
            self._order(order, [sock.fileno(), log_fd, *fds])
        finally:
            os.close(log_fd)
        return self._next_ticket

    def _order(self, order: Fork | Attach | Settle, fds: list[int]) -> None:
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(order)], fds)
        except OSError:
            raise ForkServerGone(self.last_words()) from None

    def receive(self) -> ForkNotice:
        """The next notice; call it when the descriptor is readable."""
        try:
            data = self._control.recv(MAX_PACKET_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            raise ForkServerGone(self.last_words())
        notice: ForkNotice = _NOTICES.decode(data)
        self.is_warm = self.is_warm or isinstance(notice, Warm)
        return notice

    def last_words(self) -> str:
        return "its socket ended"

    def close(self) -> None:
        """Its children are killed."""
        self._control.close()


class ForkServer(Forker):
    """The launcher's handle on the fork server. Use it as a context manager."""

    MODULE = "holdfast.runtime.launch.fork_server"

    def __init__(self, inherited_fds: Sequence[int] = (), preload: Sequence[str] = ()) -> None:
        """`inherited_fds`: open in it and in all its children, until the last of them ends.
        `preload`: modules that its children will need, so that none of them takes long to import.
        """
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(control)
        self._inherited_fds = tuple(inherited_fds)
        # What it prints is of interest only if it fails.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        # No pool of threads for numpy: workers are forked from here.
        # And no long wait for a name server: the store looks up every peer that connects.
        environment = {"RES_OPTIONS": "timeout:1 attempts:1"} | os.environ
        environment["OPENBLAS_NUM_THREADS"] = "1"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.MODULE, str(theirs.fileno()), *preload],
                pass_fds=[theirs.fileno(), *self._inherited_fds],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def attach(self) -> socket.socket:
        """A new control socket; the fork server holds the other end of it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._order(Attach(), [theirs.fileno()])
        return ours

    @cached_property
    def light(self) -> "LightForkServer":
        """The fork server of light processes beside this one; started at first use."""
        from holdfast.runtime.launch.light_fork_server import LightForkServer

        return LightForkServer(self._inherited_fds)

    def settle(self) -> None:
        """`ForkServerIdle` comes when the children of all ended control sockets are reaped."""
        self._order(Settle(), [])

    def wait_until_warm(self, deadline_s: float = WARM_DEADLINE_S) -> None:
        """Block, for callers that have no selector of their own."""
        if not self.is_warm:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if not poll.poll(1000 * deadline_s):
                raise HoldfastError(f"the fork server was not ready within {deadline_s:g} s")
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
        """End it, and with it every child that is left."""
        if "light" in self.__dict__:
            self.light.close()
        super().close()
        if not self.is_warm:  # it imports before it listens, and has no children yet
            self._process.kill()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


# The fork server itself.


class _Server:
    def __init__(self, control: socket.socket, roles: Mapping[str, RunChild]) -> None:
        self._first, self._roles = control, roles
        self._controls = {control.fileno(): control}
        self._pid = os.getpid()
        self._is_settling = False
        self._children: dict[int, tuple[socket.socket, int]] = {}
        """pid -> (control socket, ticket)"""
        # Bytes appear here when a child ends.
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)

    def serve(self) -> None:
        _tell(self._first, Warm())
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        poll.register(self._first, select.POLLIN)
        while True:
            ready = poll.poll(0 if self._is_settling else None)
            if self._is_settling and not ready:
                self._settle_or_wait()
            for fd, _ in ready:
                if fd == self._wake_in:
                    with suppress(BlockingIOError):
                        os.read(self._wake_in, 4096)
                    self._reap()
                    continue
                control = self._controls[fd]
                if self._take_order(control, poll):
                    continue
                if control is self._first:
                    return
                poll.unregister(fd)
                self._drop(fd)

    def _take_order(self, control: socket.socket, poll: select.poll) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, MAX_FDS)
        except ConnectionError:  # it was killed before it had read all it was told
            return False
        if not data:
            return False
        order = _ORDERS.decode(data)
        if isinstance(order, Settle):
            self._is_settling = True
            return True
        if isinstance(order, Attach):
            added = socket.socket(fileno=fds[0])
            self._controls[added.fileno()] = added
            poll.register(added, select.POLLIN)
            _tell(added, Warm())
            return True
        pid = os.fork()
        if pid == 0:
            self._become_child(order, fds)
        for fd in fds:
            os.close(fd)
        self._children[pid] = (control, order.ticket)
        _tell(control, Forked(order.ticket, pid))
        return True

    def _become_child(self, order: Fork, fds: list[int]) -> None:
        """In the child; never returns."""
        code = 1
        try:
            die_with_parent(self._pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._wake_in, self._wake_out):
                os.close(fd)
            for control in self._controls.values():
                control.close()
            sock_fd, log_fd, own_fd = (*fds, -1)[:MAX_FDS]
            for standard in (1, 2):
                os.dup2(log_fd, standard)
            os.close(log_fd)
            sock_fd = _move_up(sock_fd)
            start_logging(Path(order.log))
            faulthandler.enable()
            faulthandler.register(PRINT_STACKS)
            code = self._roles[order.role](socket.socket(fileno=sock_fd), own_fd)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            _LOG.critical("ended by an error", exc_info=True)
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            control, ticket = self._children.pop(pid)
            _tell(control, Exited(ticket, os.waitstatus_to_exitcode(status)))

    def _drop(self, fd: int) -> None:
        """The holder of this control socket is gone: its children are killed."""
        control = self._controls.pop(fd)
        self._kill(pid for pid, (owner, _) in self._children.items() if owner is control)
        control.close()

    def _settle_or_wait(self) -> None:
        """No control socket is readable, so every one that ended was dropped."""
        open_ = self._controls.values()
        if all(owner in open_ for owner, _ in self._children.values()):
            self._is_settling = False
            _tell(self._first, ForkServerIdle())
        else:
            select.select([self._wake_in], [], [])

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in list(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        self._kill(self._children)
        for pid in self._children:
            os.waitpid(pid, 0)


def _tell(control: socket.socket, notice: ForkNotice) -> None:
    # A holder that is gone shows as the end of its control socket.
    with suppress(OSError):
        control.send(msgspec.msgpack.encode(notice))


def _move_up(fd: int) -> int:
    """Above all others. The kernel closes the files of a process that was killed from the highest
    number down, before it is reaped, and those of a device may take it half a second: so the end of
    this one is seen first.
    """
    top = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MAX_FDS)
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, top - 1)
    os.close(fd)
    return moved


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def check_in_child(check: Callable[[], None], deadline_s: int = 20) -> bool:
    """Does it pass? In a child, because it may start threads; what is wrong is printed."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    code = 1
    try:
        signal.alarm(deadline_s)
        check()
        code = 0
    except Exception as error:
        os.write(2, f"{error if isinstance(error, HoldfastError) else repr(error)}\n".encode())
    finally:
        os._exit(code)


def serve(control_fd: int, roles: Mapping[str, RunChild]) -> None:
    # Objects made so far live for ever: no child shall collect them again, or copy their pages.
    gc.collect()
    gc.freeze()
    gc.enable()
    server = _Server(socket.socket(fileno=control_fd), roles)
    try:
        server.serve()
    finally:
        server.end()


if __name__ == "__main__":
    ignore_signals()
    gc.disable()  # a sixth of the time of the imports; `serve` makes up for it
    from holdfast.engine.transport.gloo_errors import check_gloo_errors
    from holdfast.runtime.launch.store import run_store
    from holdfast.runtime.worker.main import run_worker

    if not check_in_child(check_gloo_errors):
        sys.exit(1)
    for name in sys.argv[2:]:
        importlib.import_module(name)

    def run_successor(sock: socket.socket, own_fd: int) -> int:
        """Imported when it is needed, which most fork servers never see."""
        from holdfast.runtime.launch.light_child import run_light_child

        return run_light_child(sock, own_fd)

    roles: dict[str, RunChild] = {"": run_worker, STORE: run_store, COORDINATOR: run_successor}
    serve(int(sys.argv[1]), roles)
    os._exit(0)  # the launcher waits for this: taking torch apart first would take a while
