"""Live communication groups: values made for (members, epoch), with no global world behind them.

A `Communicator` belongs to one worker. It makes groups from a store that outlives the workers, each
under its own prefix, so that making or losing one touches no other. Every wait has a deadline.
`wake` makes every blocked operation of this worker return with an error at once, or (see
transport/gloo_waiting.py) within moments where gloo has lost it.

Bulk traffic (gradients, activations, tensor parallelism) goes over the transport of the device.
Small control traffic (agreement, flags, handshakes) and the state that joiners are fed go through
host memory, whatever the device: they must work when the device's groups are broken, and must not
stand in line behind its kernels.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import xxhash
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.engine.transport.device_log import DeviceLog
from holdfast.engine.transport.gloo import GlooTransport
from holdfast.engine.transport.nccl import NcclTransport
from holdfast.engine.transport.transport import GroupConnection, Operation, ReduceOp, Transport
from holdfast.errors import HoldfastError, invariant

BULK = ("tensor", "shard", "scatter", "reduce", "link")
"""Kinds of groups that go over the transport of the device."""
_GRACE_S = 0.05
"""How long an operation of a woken group may take to end before it is left behind."""
_TURN_S = 0.02
"""Between groups that give and groups that take, when both are broken off."""


class GroupBroken(Exception):
    """An operation could not be finished: a peer is gone, time ran out, or the worker was woken."""

    def __init__(self, message: str, blamed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.blamed = blamed
        """The peer, where there was only one."""


@contextmanager
def group_errors_unwrapped() -> Iterator[None]:
    """Around code that is not ours and calls our groups (autograd, a model's units).

    Such code may catch what a group raises and raise an error of its own in its place, as torch's
    split backward does. The worker would take that for a failure of its own and end, though only a
    peer was lost. What leaves here is the group's error, wherever it is in the chain of causes; a
    copy, since an error that is its own cause keeps its frames, and with them the group, alive.
    """
    try:
        yield
    except GroupBroken:
        raise
    except Exception as error:
        broken = find_group_error(error)
        if broken is None:
            raise
        raise GroupBroken(str(broken), broken.blamed) from error


def find_group_error(error: BaseException) -> GroupBroken | None:
    """The first in the chain of what an error was raised from, or while handling what."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, GroupBroken):
            return link
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return None


class Pending:
    """An operation under way. It must be waited for once; the tensor must live until then."""

    seconds: float | None = None
    """What it takes, waits for its members left out; None: only a clock can tell."""

    def __init__(self, group: "LiveGroup", operation: Operation, what: str, peer: str = "") -> None:
        """`peer`: of a message; a collective has none."""
        self._group, self._operation, self._what, self._peer = group, operation, what, peer

    def is_done(self) -> bool:
        """Gloo cannot say it of messages."""
        return self._operation.is_done()

    def wait(self) -> None:
        """Until it has ended, seen from the host."""
        self._group.check(self._operation.wait(self._group.is_given_up), self._what, self._peer)

    def wait_on_device(self) -> None:
        """Until work that is queued from now on sees the result."""
        reason = self._operation.wait_on_device(self._group.is_given_up)
        self._group.check(reason, self._what, self._peer)
        if not self._operation.is_done():
            self._group.log.add(self._operation)
        if (overdue := self._group.log.overdue()) is not None:
            reason = overdue.wait(self._group.is_given_up)
            self._group.check(reason, f"an operation before: {self._what}")


class LiveGroup:
    """One group as one of its members sees it."""

    def __init__(
        self,
        kind: str,
        members: tuple[str, ...],
        rank: int,
        connection: GroupConnection | None,
        log: DeviceLog | None = None,
    ) -> None:
        self.kind, self.members, self.rank = kind, members, rank
        self._connection = connection
        self.log = log or DeviceLog()
        self._broken = ""
        self._woken_at = 0.0
        """When its operations were broken off; 0: they were not."""

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def device(self) -> torch.device:
        """Where tensors for it have to be."""
        return self._connection.device if self._connection is not None else torch.device("cpu")

    @property
    def tells_times(self) -> bool:
        """Do its operations say what they take?"""
        return False

    @property
    def is_one_way(self) -> bool:
        """Messages go from the first member to the second only."""
        return self.kind == "link" and self.device.type != "cpu"

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        """Work that is queued after this sees the result."""
        self.all_reduce_async(tensor, op).wait_on_device()

    def all_reduce_async(self, tensor: Tensor, op: ReduceOp = "sum") -> Pending:
        return self._start("all-reduce", lambda live: live.all_reduce(tensor, op))

    def gather_async(self, out: Tensor, tensor: Tensor) -> Pending:
        return self._start("gather", lambda live: live.gather(out, tensor))

    def scatter_async(self, out: Tensor, tensor: Tensor) -> Pending:
        """`out`: this member's part of the sum."""
        return self._start("scatter", lambda live: live.scatter(out, tensor))

    def send(self, tensor: Tensor, to: str) -> Pending:
        peer = self.members.index(to)
        return self._start(f"send to {to}", lambda live: live.send(tensor, peer), to)

    def receive(self, tensor: Tensor, source: str) -> Pending:
        peer = self.members.index(source)
        what = f"receive from {source}"
        return self._start(what, lambda live: live.receive(tensor, peer), source)

    def warm_up(self) -> None:
        """A first operation, which takes longer than others; all members call it. Groups of a
        device had theirs when they were made.
        """
        if self.size > 1 and self.device.type == "cpu":
            self.all_reduce(torch.zeros(1))

    def _start(self, what: str, start: Any, peer: str = "") -> Pending:
        if self._broken or self._connection is None:
            raise GroupBroken(f"{self}: {what}: {self._broken or 'the group is closed'}")
        try:
            operation = start(self._connection)
        except RuntimeError as error:
            raise GroupBroken(f"{self}: {what}: {first_line(error)}", _blame(peer)) from None
        return Pending(self, operation, what, peer)

    def check(self, reason: str, what: str, peer: str = "") -> None:
        """ "Finished" means: seen, and the group was not given up since."""
        if self._broken:
            raise GroupBroken(f"{self}: {what}: {self._broken}")
        if reason:
            raise GroupBroken(f"{self}: {what}: {first_line(reason)}", _blame(peer))

    def is_given_up(self) -> bool:
        return bool(self._woken_at) and time.monotonic() - self._woken_at > _GRACE_S

    @property
    def turn(self) -> int:
        """When it is broken off, among the groups of a worker."""
        return self._connection.gives if self._connection is not None else 0

    def refuse(self, reason: str) -> None:
        """No operation counts from now on, and none is started."""
        self._broken = self._broken or reason

    def wake(self, reason: str) -> None:
        """End every blocked operation of this group, here and at its peers."""
        self.refuse(reason)
        connection = self._connection  # the worker's own thread may close the group meanwhile
        if connection is not None:
            connection.break_off()
            self._woken_at = self._woken_at or time.monotonic()

    def wait_broken_off(self) -> None:
        """After `wake`: until nothing of it is under way."""
        connection = self._connection
        if connection is not None:
            connection.wait_broken_off()

    def close(self) -> None:
        """Give back sockets and threads. Takes as long as any operation that is still under way."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __str__(self) -> str:
        return f"{self.kind} group {short_list(self.members)}"


@runtime_checkable
class StoreOfGroups(Protocol):
    """Every group has a store of its own, instead of a prefix in one that all share."""

    def of_group(self, members: Sequence[str]) -> Any:
        """A store whose connection is closed by `rest`, until it is used again."""


def store_of(store: Any, members: Sequence[str]) -> Any:
    """Where these workers leave something for each other."""
    return store.of_group(members) if isinstance(store, StoreOfGroups) else store


GroupMaker = Callable[..., LiveGroup]
"""With the arguments of `LiveGroup`."""


class Communicator:
    """Makes this worker's groups."""

    def __init__(
        self,
        worker: str,
        store: Any,
        *,
        backend: str,
        host: str,
        timeout_ms: int,
        device: torch.device | str = "cpu",
        make_group: GroupMaker = LiveGroup,
    ) -> None:
        if backend not in ("gloo", "nccl"):
            raise HoldfastError(f"backend {backend!r} is unknown; known: gloo, nccl")
        timeout = timedelta(milliseconds=timeout_ms)
        self.worker, self.backend, self._store = worker, backend, store
        self._host: Transport | None = GlooTransport(host, timeout)
        self._bulk: Transport | None = self._host
        if backend == "nccl":
            self._bulk = NcclTransport(torch.device(device), timeout)
        self._options: dict[str, Any] = {
            "backend": backend,
            "host": host,
            "timeout_ms": timeout_ms,
            "device": device,
            "make_group": make_group,
        }
        self._make_group = make_group
        self._live: list[LiveGroup] = []
        self._before: list[LiveGroup] = []
        """Groups of the communicator that this one took over from."""
        self._idle_clients: list[Any] = []
        self._lock = threading.Lock()
        self.log = DeviceLog()
        self.woken = ""
        """Why nothing more can be done with these groups; empty: they are fine."""

    @property
    def connects_beside_training(self) -> bool:
        """May groups be made and closed while a step is under way? (See transport/nccl.py.)"""
        return self.backend != "nccl"

    def renew(self) -> "Communicator":
        """A fresh start after a wake, with no group. What is still being made for the old one is
        given up by its maker.
        """
        fresh = Communicator(self.worker, self._store, **self._options)
        with self._lock:
            fresh._host, fresh._bulk = self._host, self._bulk
            fresh._idle_clients, self._idle_clients = self._idle_clients, []
            fresh._before = list(self._live)
        return fresh

    def make(self, kind: str, members: Sequence[str], epoch: int) -> LiveGroup:
        """All members must call this, and in one order over all groups they share."""
        members = tuple(members)
        invariant(self.worker in members, f"{self.worker} is not in {kind} group {members}")
        if self.woken:
            raise GroupBroken(f"{kind} group {short_list(members)}: {self.woken}")
        rank = members.index(self.worker)
        connection = None
        if len(members) > 1:
            connection = self._connect(kind, members, rank, epoch)
        group = self._make_group(kind, members, rank, connection, self.log)
        with self._lock:
            self._live.append(group)
        if self.woken:
            group.wake(self.woken)
        return group

    def _connect(
        self, kind: str, members: tuple[str, ...], rank: int, epoch: int
    ) -> GroupConnection:
        transport = self._bulk if kind in BULK else self._host
        invariant(transport is not None, f"{self.worker} has closed its communicator")
        assert transport is not None
        if not self.connects_beside_training:
            for old in self._before:
                old.wait_broken_off()
        digest = xxhash.xxh64_hexdigest("+".join(members).encode())
        client = self._store_client(members)
        store = PrefixStore(f"e{epoch}/{kind}/{digest}", client)
        try:
            made = transport.connect(kind, store, rank, len(members))
        except RuntimeError as error:
            with self._lock:
                self._idle_clients.clear()  # the store may have been started again
            raise GroupBroken(
                f"{kind} group {short_list(members)} of epoch {epoch}: {first_line(error)}"
            ) from None
        finally:
            if isinstance(self._store, StoreOfGroups):
                client.rest()
        if not isinstance(self._store, StoreOfGroups):
            with self._lock:
                self._idle_clients.append(client)
        return made

    def _store_client(self, members: tuple[str, ...]) -> Any:
        """A store client for one caller at a time: a blocking wait on it blocks all others.

        Clients are kept for the next group, since a new connection is not cheap: the store looks
        its peer up by address, in its one loop, and a lookup that gets lost stops it for seconds.
        """
        if isinstance(self._store, StoreOfGroups):
            return self._store.of_group(members)
        with self._lock:
            if self._idle_clients:
                return self._idle_clients.pop()
        return self._store.clone()

    def wake(self, reason: str) -> None:
        """Make every blocked operation of this worker return with an error; no new one starts."""
        with self._lock:
            self.woken = self.woken or reason
            groups = list(self._live)
        self.log.close()
        for group in groups:
            group.refuse(reason)
        turns = sorted({group.turn for group in groups if group.size > 1})
        for turn in turns:
            if turn != turns[0]:
                time.sleep(_TURN_S)
            for group in groups:
                if group.turn == turn:
                    group.wake(reason)

    def close(self, groups: Sequence[LiveGroup]) -> None:
        with self._lock:
            gone = {id(group) for group in groups}
            self._live = [group for group in self._live if id(group) not in gone]
        if not self.connects_beside_training:
            for group in groups:
                group.wake("the group is closed")  # side by side, see transport/nccl.py
        for group in groups:
            group.close()

    def close_all(self) -> None:
        self.close(list(self._live))
        self._idle_clients.clear()
        self._host = self._bulk = None

    @property
    def num_live(self) -> int:
        return len(self._live)


def _blame(peer: str) -> tuple[str, ...]:
    return (peer,) if peer else ()


def first_line(error: BaseException | str) -> str:
    """What gloo and NCCL say, without their source paths and greetings."""
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    if line.startswith("[") and "] " in line:
        line = line.partition("] ")[2]
    return line.partition(" This is typically")[0].strip()


def short_list(members: Sequence[str]) -> str:
    if len(members) <= 4:
        return "(" + ", ".join(members) + ")"
    return f"({members[0]}, {members[1]}, ... {members[-1]}; {len(members)})"
