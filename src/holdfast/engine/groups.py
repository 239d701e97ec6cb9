"""Live communication groups: values made for (members, epoch), with no global world behind them.

A worker's `Communicator` (communicator.py) makes them, breaks them off and lets them live on.

Bulk traffic (gradients, activations, tensor parallelism) goes over the transport of the device.
Small control traffic (agreement, flags, handshakes) and the state that joiners are fed go through
host memory, whatever the device: they must work when the device's groups are broken, and must not
stand in line behind its kernels.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.control.report import GroupLevel
from holdfast.engine.transport.device_log import DeviceLog
from holdfast.engine.transport.transport import GroupConnection, Operation, ReduceOp

OF_PLAN = ("tensor", "shard", "scatter", "reduce", "link", "all")
"""Kinds that may live on over a recovery."""
_OF_STEP = ("reduce", "all")
"""Kinds in which nothing is started any more when a worker stops: the step does not end."""
_PATIENCE_S = 0.2
"""How long a worker that stops waits for an operation whose peer may have stopped before it."""
_MAX_OPEN = 32
"""Operations after which those that have ended are looked for."""
_NOT_STARTED = "this worker stops"
_GRACE_S = 0.05
"""How long an operation of a woken group may take to end before it is left behind."""


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
        is_given_up = partial(self._group.is_given_up, time.monotonic())
        self._group.check(self._operation.wait(is_given_up), self._what, self._peer)
        self._group.ended(self._operation)

    def wait_on_device(self) -> None:
        """Until work that is queued from now on sees the result."""
        is_given_up = partial(self._group.is_given_up, time.monotonic())
        reason = self._operation.wait_on_device(is_given_up)
        self._group.check(reason, self._what, self._peer)
        if self._operation.is_done():
            self._group.ended(self._operation)
        else:
            self._group.log.add(self._operation)
        if (overdue := self._group.log.overdue()) is not None:
            reason = overdue.wait(is_given_up)
            self._group.check(reason, f"an operation before: {self._what}")


class _NeverStarted:
    """(Operation) Of a worker that stops: its peers will not take part."""

    def is_done(self) -> bool:
        return False

    def wait(self, is_given_up: Callable[[], bool]) -> str:
        return _NOT_STARTED

    wait_on_device = wait


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
        self._closing: GroupConnection | None = None
        self.log = log or DeviceLog()
        self.name = ""
        """The same at all members, and of no other group."""
        self.is_retired = False
        """No plan needs it any more."""
        self._counts = [0, 0, 0]
        """Operations that were started: of all members, and messages of the first and second."""
        self._open: list[Operation] = []
        """Those that were not seen to have ended."""
        self._has_failed = self._is_at_rest = False
        self._stopped_at = 0.0
        """Since when this worker stops; 0: it does not."""
        self._broken = ""
        self._woken_at = 0.0
        """When its operations were given up; 0: they were not."""
        self._is_broken_off = False

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
        return self._start(f"send to {to}", lambda live: live.send(tensor, peer), to, self.rank)

    def receive(self, tensor: Tensor, source: str) -> Pending:
        peer = self.members.index(source)
        what = f"receive from {source}"
        return self._start(what, lambda live: live.receive(tensor, peer), source, peer)

    def warm_up(self) -> None:
        """A first operation, which takes longer than others; all members call it. Groups of a
        device had theirs when they were made.
        """
        if self.size > 1 and self.device.type == "cpu":
            self.all_reduce(torch.zeros(1))

    def _start(self, what: str, start: Any, peer: str = "", source: int = -1) -> Pending:
        """`source`: who sends, of a message."""
        if self._stopped_at and self.kind in _OF_STEP:
            return Pending(self, _NeverStarted(), what)
        if self._broken or self._connection is None:
            raise GroupBroken(f"{self}: {what}: {self._broken or 'the group is closed'}")
        try:
            operation = start(self._connection)
        except RuntimeError as error:
            self._has_failed = True
            raise GroupBroken(f"{self}: {what}: {first_line(error)}", _blame(peer)) from None
        if source < 2:
            self._counts[source + 1] += 1
        self._open.append(operation)
        if len(self._open) > _MAX_OPEN:
            self._open = [one for one in self._open if not one.is_done()]
        return Pending(self, operation, what, peer)

    def ended(self, operation: Operation) -> None:
        """Seen from the host, and without an error."""
        if operation in self._open:
            self._open.remove(operation)

    def check(self, reason: str, what: str, peer: str = "") -> None:
        """ "Finished" means: seen, and the group was not given up since."""
        if self._broken:
            raise GroupBroken(f"{self}: {what}: {self._broken}")
        if reason:
            self._has_failed = self._has_failed or reason != _NOT_STARTED
            raise GroupBroken(f"{self}: {what}: {first_line(reason)}", _blame(peer))

    def is_given_up(self, waits_since: float = 0.0) -> bool:
        """Is an operation not waited for any more?"""
        if self._woken_at:
            return time.monotonic() - self._woken_at > _GRACE_S
        if not self._stopped_at:
            return False
        return time.monotonic() - max(waits_since, self._stopped_at) > _PATIENCE_S

    # Stopping, and going on.

    def stop(self, reason: str, *, is_doomed: bool) -> None:
        """This worker stops. `is_doomed`: a member leaves. Its operations are not waited for any
        more; those of a device are not ended here.
        """
        self._stopped_at = time.monotonic()
        if not is_doomed:
            return
        self.refuse(reason)
        if self.device.type == "cpu":
            self.wake(reason)
        else:
            self._woken_at = self._stopped_at - _GRACE_S

    @property
    def is_stopping(self) -> bool:
        return bool(self._stopped_at)

    def let_end(self, since: float) -> None:
        """Wait a while for what is under way."""
        is_given_up = partial(self.is_given_up, since)
        for operation in list(self._open):
            if self._woken_at:
                return
            if operation.wait(is_given_up):
                self._has_failed = True
                return
            self.ended(operation)

    def look_at_rest(self) -> None:
        """This worker has stopped: is something under way? Asked once, by the thread that computes,
        and before any group is broken off: a device that is busy with that may not answer.
        """
        is_busy = any(not operation.is_done() for operation in self._open)
        self._is_at_rest = not (self._is_broken_off or self._has_failed or is_busy)

    @property
    def has_open(self) -> bool:
        """Has not every operation been seen to have ended?"""
        return bool(self._open)

    @property
    def is_whole(self) -> bool:
        """Nothing was under way when this worker stopped, and nothing was broken off."""
        return self._is_at_rest and not self._is_broken_off

    @property
    def level(self) -> GroupLevel | None:
        """None: it cannot live on."""
        if self.size < 2 or self.kind not in OF_PLAN or self.is_retired or not self.is_whole:
            return None
        return GroupLevel(self.size, tuple(self._counts))

    def live_on(self, log: DeviceLog) -> None:
        """In the next epoch."""
        self.log, self._broken, self._is_at_rest = log, "", False
        self._stopped_at = self._woken_at = 0.0

    @property
    def turn(self) -> int:
        """When it is broken off, among the groups of a worker."""
        return self._connection.gives if self._connection is not None else 0

    @property
    def is_refused(self) -> bool:
        return bool(self._broken)

    def refuse(self, reason: str) -> None:
        """No operation counts from now on, and none is started."""
        self._broken = self._broken or reason

    def wake(self, reason: str) -> None:
        """End every blocked operation of this group, here and at its peers."""
        self.refuse(reason)
        self._is_broken_off = True
        connection = self._connection  # the worker's own thread may close the group meanwhile
        if connection is not None:
            connection.break_off()
            self._woken_at = self._woken_at or time.monotonic()

    def wait_broken_off(self, timeout_s: float) -> None:
        """After `wake`: until nothing of it is under way, be it that it is being closed."""
        connection = self._connection or self._closing
        if connection is not None:
            connection.wait_broken_off(timeout_s)

    def close(self) -> None:
        """Give back sockets and threads. Takes as long as any operation that is still under way."""
        self._closing = connection = self._connection
        self._connection = None
        if connection is not None:
            connection.close()
        self._closing = None

    def __str__(self) -> str:
        return f"{self.kind} group {short_list(self.members)}"


GroupMaker = Callable[..., LiveGroup]
"""With the arguments of `LiveGroup`."""


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
