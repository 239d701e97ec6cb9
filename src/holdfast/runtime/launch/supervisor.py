"""The launcher's processes: the store, a coordinator, which is started again when it is lost, and
an agent per node.

One selector watches all of them, the two fork servers and the signals. `wait` gives back what
happened; what it means is decided elsewhere. Use it as a context manager: no process
outlives it.
"""

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.control.message import Message
from holdfast.runtime.agent.agent import AgentSpec
from holdfast.runtime.launch.exit_status import describe_exit
from holdfast.runtime.launch.fork_server import (
    STORE,
    Exited,
    Forked,
    ForkServer,
    ForkServerGone,
    ForkServerIdle,
)
from holdfast.runtime.launch.launcher_messages import (
    BY_LAUNCHER,
    CannotWrite,
    CoordinatorSpec,
    Ending,
    StartOf,
    Wrote,
)
from holdfast.runtime.launch.light_fork_server import LightForkServer
from holdfast.runtime.launch.signals import SignalBox
from holdfast.runtime.wire.frames import Unpacker, pack

END_DEADLINE_S = 10.0


class Told(msgspec.Struct, frozen=True):
    """The coordinator wrote something down, or says that the job is over."""

    message: Wrote | CannotWrite | Ending


class CoordinatorLost(msgspec.Struct, frozen=True):
    how: str


class AgentLost(msgspec.Struct, frozen=True):
    node: str
    how: str


class StoreLost(msgspec.Struct, frozen=True):
    how: str


class Signalled(msgspec.Struct, frozen=True):
    number: int


class Warmed(msgspec.Struct, frozen=True):
    """One of the fork servers is ready to fork."""


SupervisorNotice = Told | CoordinatorLost | AgentLost | StoreLost | Signalled | Warmed


class _Child:
    def __init__(self, name: str, ticket: int, sock: socket.socket) -> None:
        self.name, self.ticket, self.socket = name, ticket, sock
        self.unpacker = Unpacker(BY_LAUNCHER)
        self.pid = 0


class Supervisor:
    def __init__(
        self,
        fork_server: ForkServer | None,
        light_server: LightForkServer,
        log_dir: Path,
        signals: SignalBox,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fork_server`: for workers; None: there are none on this machine."""
        self._fork_server, self._light_server, self._log_dir, self._clock = (
            fork_server,
            light_server,
            log_dir,
            clock,
        )
        self._store: _Child | None = None
        self._coordinator: _Child | None = None
        self._agents: dict[str, _Child] = {}
        self._is_settled = True
        self._selector = selectors.DefaultSelector()
        self._signals = signals
        if fork_server is not None:
            self._selector.register(fork_server, selectors.EVENT_READ, self._receive_fork_notice)
        self._selector.register(light_server, selectors.EVENT_READ, self._receive_light_fork_notice)
        self._selector.register(self._signals.inbox, selectors.EVENT_READ, self._receive_signals)

    # Starting.

    def start_store(self, listener: socket.socket) -> None:
        """On a bound socket that stays here: who connects meanwhile waits in it."""
        ours, theirs = socket.socketpair()
        with theirs:
            log = self._log_dir / f"{STORE}.log"
            assert self._fork_server is not None
            ticket = self._fork_server.fork(theirs, log, listener.fileno(), role=STORE)
        self._store = _Child(STORE, ticket, ours)

    def start_coordinator(self, spec: CoordinatorSpec, listener: socket.socket) -> None:
        """On a bound socket that stays here: who connects meanwhile waits in it."""
        self._coordinator = self._start("coordinator", StartOf(spec=spec), listener.fileno())
        self._selector.register(
            self._coordinator.socket, selectors.EVENT_READ, self._receive_from_coordinator
        )

    def start_agent(self, spec: AgentSpec) -> None:
        assert self._fork_server is not None
        self._is_settled = False
        with self._fork_server.attach() as control:
            self._agents[spec.node] = self._start(
                f"agent-{spec.node}", StartOf(spec=spec), control.fileno()
            )

    def _start(self, name: str, first: StartOf, own_fd: int) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            ticket = self._light_server.fork(theirs, self._log_dir / f"{name}.log", own_fd)
        child = _Child(name, ticket, ours)
        with suppress(OSError):  # it may have ended already; how is told by the light fork server
            ours.sendall(pack(first))
        return child

    def tell(self, message: Message) -> None:
        """To the coordinator, if there is one."""
        if self._coordinator is not None:
            with suppress(OSError):
                self._coordinator.socket.sendall(pack(message))

    # Listening.

    def wait(self, deadline: float) -> list[SupervisorNotice]:
        """What happened, at least one thing; nothing once the clock has passed `deadline`."""
        notices: list[SupervisorNotice] = []
        while not notices:
            left = deadline - self._clock()
            if left <= 0:
                break
            for key, _ in self._selector.select(left):
                notices += key.data()
        return notices

    def _receive_signals(self) -> Iterator[SupervisorNotice]:
        return (Signalled(number) for number in self._signals.drain())

    def _receive_fork_notice(self) -> Iterator[SupervisorNotice]:
        """Of its children only the store is ours; the others are the agents'."""
        assert self._fork_server is not None
        store = self._store
        match self._fork_server.receive():
            case ForkServerIdle():
                self._is_settled = True
            case Forked(ticket, pid):
                if store is not None and store.ticket == ticket:
                    store.pid = pid
            case Exited(ticket, status):
                if store is not None and store.ticket == ticket:
                    store.socket.close()
                    self._store = None
                    yield StoreLost(describe_exit(status))
            case _:
                yield Warmed()

    def _receive_light_fork_notice(self) -> Iterator[SupervisorNotice]:
        match self._light_server.receive():
            case Forked(ticket, pid):
                for child in self._children():
                    if child.ticket == ticket:
                        child.pid = pid
            case Exited(ticket, status):
                yield from self._ended(ticket, status)
            case _:
                yield Warmed()

    def _children(self) -> list[_Child]:
        coordinator = [] if self._coordinator is None else [self._coordinator]
        return [*coordinator, *self._agents.values()]

    def _ended(self, ticket: int, status: int) -> Iterator[SupervisorNotice]:
        """None of ours, if it belongs to an earlier run from the same fork servers."""
        how = describe_exit(status)
        coordinator = self._coordinator
        if coordinator is not None and coordinator.ticket == ticket:
            # What it said before it ended comes first.
            while coordinator.socket.fileno() >= 0:
                yield from self._receive_from_coordinator()
            self._coordinator = None
            yield CoordinatorLost(how)
        for node, agent in list(self._agents.items()):
            if agent.ticket == ticket:
                agent.socket.close()
                del self._agents[node]
                yield AgentLost(node, how)

    def _receive_from_coordinator(self) -> Iterator[SupervisorNotice]:
        child = self._coordinator
        if child is None or child.socket.fileno() < 0:
            return
        try:
            data = child.socket.recv(2**18)
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(child.socket)
            child.socket.close()
            return
        for message in child.unpacker.feed(data):
            yield Told(message)

    # Ending.

    @property
    def has_coordinator(self) -> bool:
        return self._coordinator is not None

    @property
    def is_empty(self) -> bool:
        """But for the store, which is needed until the others are gone."""
        return not self._children()

    def _all(self) -> list[_Child]:
        return [*self._children(), *([] if self._store is None else [self._store])]

    def end(self) -> None:
        """Kill the processes that are left, and see that they and their workers are gone."""
        for child in self._all():
            if child.pid:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
            else:  # only just being forked; it notices this
                child.socket.shutdown(socket.SHUT_RDWR)
        deadline = self._clock() + END_DEADLINE_S
        # Without their fork server the kernel has ended them already.
        with suppress(ForkServerGone):
            while self._all() and self.wait(deadline):
                pass
            self._settle(deadline)

    def _settle(self, deadline: float) -> None:
        """Agents that were killed leave their workers to the fork server."""
        if not self._is_settled and self._fork_server is not None:
            self._fork_server.settle()
        while not self._is_settled and self._clock() < deadline:
            for key, _ in self._selector.select(deadline - self._clock()):
                list(key.data())

    def close(self) -> None:
        for child in self._all():
            child.socket.close()
        self._selector.close()

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *args: object) -> None:
        try:
            self.end()
        finally:
            self.close()
