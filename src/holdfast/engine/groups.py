"""Live communication groups: values made for (members, epoch), with no global world behind them.

A `Communicator` belongs to one worker. It makes groups from a store that outlives the workers,
each under its own prefix, so that making or losing one touches no other. Every wait has a
deadline. `wake` makes every blocked operation of this worker return with an error at once, or
(waiting.py) within moments where gloo has lost it.

Backends: gloo (CPU, and CUDA tensors through host memory for point-to-point, which gloo cannot
send itself) and NCCL. The two differ in what they forgive: NCCL has no tags and one order per
group, so callers keep to that order with both; on gloo a running number is used as the tag, so
that a mistake shows as a hang with a name instead of as wrong numbers.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.engine.gloo_errors import MESSAGE_TIMED_OUT
from holdfast.engine.tensor_parallel import ReduceOp
from holdfast.engine.waiting import outcome, wait_for_collective, wait_for_message
from holdfast.errors import HoldfastError, invariant

_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_WAKE_TAG = 2**30
"""Never used for a message: a receive on it times out, and that closes all pairs of a group."""
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
        broken = _find_group_error(error)
        if broken is None:
            raise
        raise GroupBroken(str(broken), broken.blamed) from error


def _find_group_error(error: BaseException) -> GroupBroken | None:
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
    """An operation under way. `wait` must be called once; the tensor must live until then."""

    def __init__(
        self,
        group: "LiveGroup",
        work: Any,
        what: str,
        landing: Tensor | None = None,
        peer: str = "",
    ) -> None:
        """`peer`: of a message; a collective has none."""
        self._group, self._work, self._what, self._peer = group, work, what, peer
        self._landing = landing  # (gloo, CUDA) the host copy that is on its way
        self.target: Tensor | None = None

    def is_done(self) -> bool:
        """Only for collectives; gloo cannot say it of messages."""
        return bool(self._work.is_completed())

    def wait(self) -> None:
        self._group.wait(self._work, self._what, self._peer)
        if self._landing is not None and self.target is not None:
            self.target.copy_(self._landing)
        self._landing = None


class LiveGroup:
    """One group as one of its members sees it."""

    def __init__(
        self, kind: str, members: tuple[str, ...], rank: int, process_group: Any, backend: str
    ) -> None:
        self.kind, self.members, self.rank = kind, members, rank
        self._process_group, self._backend = process_group, backend
        self._broken = ""
        self._woken_at = 0.0
        """When its connections were closed; 0: they are not."""
        self._numbers: dict[tuple[int, bool], int] = {}

    @property
    def size(self) -> int:
        return len(self.members)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        self.all_reduce_async(tensor, op).wait()

    def all_reduce_async(self, tensor: Tensor, op: ReduceOp = "sum") -> Pending:
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[op]
        return self._start("all-reduce", lambda pg: pg.allreduce([tensor], options))

    def send(self, tensor: Tensor, to: str) -> Pending:
        peer = self.members.index(to)
        tag = self._next_tag(peer, sending=True)
        landing = self._host_copy(tensor)
        payload = tensor if landing is None else landing
        what = f"send to {to}"
        return self._start(what, lambda pg: pg.send([payload], peer, tag), landing, to)

    def receive(self, tensor: Tensor, source: str) -> Pending:
        peer = self.members.index(source)
        tag = self._next_tag(peer, sending=False)
        staged = self._backend == "gloo" and tensor.is_cuda
        landing = torch.empty(tensor.shape, dtype=tensor.dtype) if staged else None
        payload = tensor if landing is None else landing
        pending = self._start(
            f"receive from {source}", lambda pg: pg.recv([payload], peer, tag), landing, source
        )
        pending.target = tensor
        return pending

    def _host_copy(self, tensor: Tensor) -> Tensor | None:
        return tensor.cpu() if self._backend == "gloo" and tensor.is_cuda else None

    def _next_tag(self, peer: int, *, sending: bool) -> int:
        """A running number per direction; the two ends count alike because their order is one."""
        number = self._numbers.get((peer, sending), 0)
        self._numbers[peer, sending] = number + 1
        return number % 2**20

    def _start(
        self, what: str, operation: Any, landing: Tensor | None = None, peer: str = ""
    ) -> Pending:
        if self._broken or self._process_group is None:
            raise GroupBroken(f"{self}: {what}: {self._broken or 'the group is closed'}")
        try:
            work = operation(self._process_group)
        except RuntimeError as error:
            raise GroupBroken(f"{self}: {what}: {first_line(error)}", _blame(peer)) from None
        return Pending(self, work, what, landing, peer)

    def wait(self, work: Any, what: str, peer: str = "") -> None:
        reason = self._wait(work, is_message=bool(peer))
        if self._broken:
            # "Finished" means: seen, and the group was not given up since.
            raise GroupBroken(f"{self}: {what}: {self._broken}")
        if reason:
            raise GroupBroken(f"{self}: {what}: {first_line(reason)}", _blame(peer))

    def _wait(self, work: Any, *, is_message: bool) -> str:
        """What went wrong, if anything did."""
        if self._backend == "nccl":
            return outcome(work)
        if is_message:
            return wait_for_message(work, self._process_group, self._is_given_up)
        return wait_for_collective(work, self._process_group, self._is_given_up)

    def _is_given_up(self) -> bool:
        return bool(self._woken_at) and time.monotonic() - self._woken_at > _GRACE_S

    def wake(self, reason: str) -> None:
        """End every blocked operation of this group, here and at its peers."""
        self._broken = self._broken or reason
        process_group = self._process_group
        if process_group is None or self.size == 1:
            return
        if self._backend == "nccl":
            process_group.abort()
        else:
            self._close_connections(process_group)
        self._woken_at = self._woken_at or time.monotonic()

    def _close_connections(self, process_group: Any) -> None:
        """A receive that times out closes them all. One from a peer whose connection has ended
        already does not: it fails at once, and the next peer is tried.
        """
        for distance in range(1, self.size):
            peer = (self.rank + distance) % self.size
            try:
                knock = process_group.recv([torch.empty(1)], peer, _WAKE_TAG)
                knock.wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                if MESSAGE_TIMED_OUT in str(error):
                    return

    def close(self) -> None:
        """Give back sockets and threads. Takes as long as any operation that is still under way."""
        process_group, self._process_group = self._process_group, None
        if process_group is not None and self._backend == "nccl":
            process_group.shutdown()

    def __str__(self) -> str:
        return f"{self.kind} group {short_list(self.members)}"


class Communicator:
    """Makes this worker's groups."""

    def __init__(
        self, worker: str, store: Any, *, backend: str, host: str, timeout_ms: int
    ) -> None:
        if backend not in ("gloo", "nccl"):
            raise HoldfastError(f"backend {backend!r} is unknown; known: gloo, nccl")
        self.worker, self.backend = worker, backend
        self._store, self._host = store, host
        self._timeout = timedelta(milliseconds=timeout_ms)
        self._device: Any = None
        self._live: list[LiveGroup] = []
        self._idle_clients: list[Any] = []
        self._lock = threading.Lock()
        self.woken = ""
        """Why nothing more can be done with these groups; empty: they are fine."""

    def renew(self) -> "Communicator":
        """A fresh start after a wake, with no group. What is still being made for the old one is
        given up by whoever makes it.
        """
        fresh = Communicator(
            self.worker,
            self._store,
            backend=self.backend,
            host=self._host,
            timeout_ms=round(self._timeout.total_seconds() * 1000),
        )
        with self._lock:
            fresh._device = self._device
            fresh._idle_clients, self._idle_clients = self._idle_clients, []
        return fresh

    def make(self, kind: str, members: Sequence[str], epoch: int) -> LiveGroup:
        """All members must call this, and in one order over all groups they share."""
        members = tuple(members)
        invariant(self.worker in members, f"{self.worker} is not in {kind} group {members}")
        if self.woken:
            raise GroupBroken(f"{kind} group {short_list(members)}: {self.woken}")
        rank = members.index(self.worker)
        process_group = None
        if len(members) > 1:
            process_group = self._connect(kind, members, rank, epoch)
        group = LiveGroup(kind, members, rank, process_group, self.backend)
        with self._lock:
            self._live.append(group)
        if self.woken:
            group.wake(self.woken)
        return group

    def _connect(self, kind: str, members: tuple[str, ...], rank: int, epoch: int) -> Any:
        digest = xxhash.xxh64_hexdigest("+".join(members).encode())
        client = self._store_client()
        store = PrefixStore(f"e{epoch}/{kind}/{digest}", client)
        try:
            if self.backend == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = self._timeout
                made: Any = dist.ProcessGroupNCCL(store, rank, len(members), options)
            else:
                made = self._connect_gloo(store, rank, len(members))
        except RuntimeError as error:
            raise GroupBroken(
                f"{kind} group {short_list(members)} of epoch {epoch}: {first_line(error)}"
            ) from None
        if self.backend == "gloo":  # NCCL connects, and so needs its client, at first use
            with self._lock:
                self._idle_clients.append(client)
        return made

    def _store_client(self) -> Any:
        """A store client for one caller at a time: a blocking wait on it blocks all others.

        Clients are kept for the next group, since a new connection is not cheap: the store looks
        its peer up by address, in its one loop, and a lookup that gets lost stops it for seconds.
        """
        with self._lock:
            if self._idle_clients:
                return self._idle_clients.pop()
        return self._store.clone()

    def _connect_gloo(self, store: Any, rank: int, size: int) -> Any:
        with self._lock:
            if self._device is None:
                # One listener and one loop thread for all groups of this worker.
                self._device = dist.ProcessGroupGloo.create_device(hostname=self._host)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [self._device]
        options._threads = 1
        options._timeout = self._timeout
        return dist.ProcessGroupGloo(store, rank, size, options)

    def wake(self, reason: str) -> None:
        """Make every blocked operation of this worker return with an error; no new one starts."""
        with self._lock:
            self.woken = self.woken or reason
            groups = list(self._live)
        for group in groups:
            group.wake(reason)

    def close(self, groups: Sequence[LiveGroup]) -> None:
        with self._lock:
            gone = {id(group) for group in groups}
            self._live = [group for group in self._live if id(group) not in gone]
        for group in groups:
            group.close()

    def close_all(self) -> None:
        self.close(list(self._live))
        self._idle_clients.clear()
        self._device = None

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
