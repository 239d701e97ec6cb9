"""Groups over gloo: TCP between hosts' memories.

It reduces tensors of any device, but sends only from host memory: messages of a device go through
a copy there. A running number per direction is the tag of a message, so that a mistake in the order
shows as a hang with a name instead of as wrong numbers.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from holdfast.engine.transport.gloo_errors import MESSAGE_TIMED_OUT
from holdfast.engine.transport.gloo_waiting import wait_for_collective, wait_for_message
from holdfast.engine.transport.transport import ReduceOp

OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_WAKE_TAG = 2**30
"""Never used for a message: a receive on it times out, and that closes all pairs of a group."""


class GlooTransport:
    name = "gloo"

    def __init__(self, host: str, timeout: timedelta) -> None:
        self._host, self._timeout = host, timeout
        self._device: Any = None
        self._lock = threading.Lock()

    def connect(self, kind: str, store: Any, rank: int, size: int) -> "GlooConnection":
        with self._lock:
            if self._device is None:
                # One listener and one loop thread for all groups of this worker.
                self._device = dist.ProcessGroupGloo.create_device(hostname=self._host)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [self._device]
        options._threads = 1
        options._timeout = self._timeout
        return GlooConnection(dist.ProcessGroupGloo(store, rank, size, options), rank, size)


class GlooConnection:
    device = torch.device("cpu")
    gives = 0

    def __init__(self, process_group: Any, rank: int, size: int) -> None:
        self._process_group, self._rank, self._size = process_group, rank, size
        self._numbers: dict[tuple[int, bool], int] = {}

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> "_Collective":
        options = dist.AllreduceOptions()
        options.reduceOp = OPS[op]
        return _Collective(self._process_group.allreduce([tensor], options), self._process_group)

    def gather(self, out: Tensor, tensor: Tensor) -> "_Collective":
        options = AllgatherOptions()
        work = self._process_group._allgather_base(out, tensor, options)
        return _Collective(work, self._process_group)

    def scatter(self, out: Tensor, tensor: Tensor) -> "_Scatter":
        """Gloo's own is a sum of everything, too, but cannot be asked whether it has ended, and a
        wait for it knows no time limit: a worker whose peer never begins it could not leave.
        """
        total = tensor.clone()
        work = self._process_group.allreduce([total], dist.AllreduceOptions())
        part = total.view(self._size, -1)[self._rank]
        return _Scatter(work, self._process_group, part, out)

    def send(self, tensor: Tensor, peer: int) -> "_Message":
        payload = tensor.cpu() if tensor.is_cuda else tensor
        work = self._process_group.send([payload], peer, self._next_tag(peer, sending=True))
        return _Message(work, self._process_group, payload)

    def receive(self, tensor: Tensor, peer: int) -> "_Message":
        payload = torch.empty(tensor.shape, dtype=tensor.dtype) if tensor.is_cuda else tensor
        work = self._process_group.recv([payload], peer, self._next_tag(peer, sending=False))
        return _Message(work, self._process_group, payload, tensor)

    def _next_tag(self, peer: int, *, sending: bool) -> int:
        """A running number per direction; the two ends count alike because their order is one."""
        number = self._numbers.get((peer, sending), 0)
        self._numbers[peer, sending] = number + 1
        return number % 2**20

    def break_off(self) -> None:
        """A receive that times out closes all connections. One from a peer whose connection has
        ended already does not: it fails at once, and the next peer is tried. Another thread may
        close the group meanwhile.
        """
        process_group = self._process_group
        if process_group is None:
            return
        for distance in range(1, self._size):
            peer = (self._rank + distance) % self._size
            try:
                knock = process_group.recv([torch.empty(1)], peer, _WAKE_TAG)
                knock.wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                if MESSAGE_TIMED_OUT in str(error):
                    return

    def wait_broken_off(self, timeout_s: float) -> None:
        """Its connections are closed when `break_off` returns."""

    def close(self) -> None:
        """The last reference is what keeps it; this takes as long as any operation under way."""
        self._process_group = None


class _Collective:
    def __init__(self, work: Any, process_group: Any) -> None:
        self._work, self._process_group = work, process_group

    def is_done(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, is_given_up: Callable[[], bool]) -> str:
        return wait_for_collective(self._work, self._process_group, is_given_up)

    wait_on_device = wait


class _Scatter(_Collective):
    def __init__(self, work: Any, process_group: Any, part: Tensor, out: Tensor) -> None:
        """`part` of the sum goes to `out`."""
        super().__init__(work, process_group)
        self._part, self._out = part, out

    def wait(self, is_given_up: Callable[[], bool]) -> str:
        reason = super().wait(is_given_up)
        if not reason:
            self._out.view(-1).copy_(self._part)
        return reason

    wait_on_device = wait


class _Message:
    def __init__(
        self, work: Any, process_group: Any, payload: Tensor, target: Tensor | None = None
    ) -> None:
        """`payload` lives until the message has arrived; it is copied to `target` then."""
        self._work, self._process_group = work, process_group
        self._payload: Tensor | None = payload
        self._target = target

    def is_done(self) -> bool:
        """Gloo cannot say it of a message before it was waited for."""
        return self._payload is None

    def wait(self, is_given_up: Callable[[], bool]) -> str:
        reason = wait_for_message(self._work, self._process_group, is_given_up)
        if not reason and self._target is not None and self._target is not self._payload:
            assert self._payload is not None
            self._target.copy_(self._payload)
        self._payload = None
        return reason

    wait_on_device = wait
