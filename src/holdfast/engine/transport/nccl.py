"""Groups over NCCL: device memory to device memory.

NCCL has no tags and one order per communicator, so a pair of workers has a communicator per
direction (else a send would wait behind a receive), and communicators are made when the group is,
not at its first use, in the order in which all workers make their groups.

A kernel of NCCL whose peer is gone runs until its communicator is aborted. Aborting takes about
half a second for each, so a thread of its own does it for each, side by side. It holds a lock of
the communicator meanwhile and may wait for the kernels of others, so nothing else asks a
communicator that is being aborted anything: torch would wait for that lock with the interpreter's
lock in hand, and no other abort could begin.

Making, aborting and closing a communicator asks the device for memory or gives it back, which waits
for every kernel that runs there, while no other can be launched. A kernel that waits for a peer
which is in the same position waits for ever. So all three are done while no step is under way. They
may be done beside each other: all workers make their groups in one order, so of the groups that are
being made, all members of the first get on, and after it those of the next.

An operation that has failed counts as completed for torch, and waiting for it aborts its
communicator, on the thread that waits. So it is asked for its result first, and never waited for.

Operations are started inside a group call of NCCL, whose depth belongs to the thread. One that
fails to start leaves the depth as it was: whatever this thread starts from then on, of any
communicator, is queued and never launched, and counts as ended at once. So the depth is put back.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, ReduceScatterOptions

from holdfast.engine.transport.gloo import OPS
from holdfast.engine.transport.transport import LEFT_BEHIND, ReduceOp

_POLL_S = 0.0001
_ABORT_BEGUN_S = 5.0
_TURNS = {"reduce": 0, "scatter": 0, "tensor": 1, "shard": 1}
_INVALID_USAGE = 5
"""What NCCL answers to the end of a group call that was never begun."""
_MAX_DEPTH = 8
_SUCCESS = 0
"""Of torch's WorkResult."""


def prepare_process(worker: str, *, shares_device: bool) -> None:
    """Settings that are read once: before a process uses its device."""
    # The watchdog of torch ends a process in which an operation fails; recovering is our part.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    os.environ.setdefault("TORCH_NCCL_PROPAGATE_ERROR", "0")
    # For so long, four times, it keeps the group in which an operation failed from being closed.
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0")
    # Torch looks up the source lines of an operation that fails, which needs the interpreter's lock
    # and imports its compiler: seconds in which a survivor cannot recover.
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:  # the older name
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    # Streams that share a queue of the device wait for each other; a message would for a kernel.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if shares_device:
        # NCCL refuses two ranks of one host on one device; as two hosts they use sockets.
        os.environ["NCCL_HOSTID"] = worker
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_IB_DISABLE", "1")


def end_group_calls(library: Any) -> int:
    """End every group call that this thread has open; how many there were."""
    for depth in range(_MAX_DEPTH):
        if library.ncclGroupEnd() == _INVALID_USAGE:
            return depth
    return _MAX_DEPTH


def _library() -> Any:
    """The NCCL that torch has loaded, or is linked with."""
    with open("/proc/self/maps") as maps:
        paths = (line.split(maxsplit=5)[-1].strip() for line in maps)
        return ctypes.CDLL(next((path for path in paths if "libnccl.so" in path), None))


class NcclTransport:
    name = "nccl"

    def __init__(self, device: torch.device, timeout: timedelta) -> None:
        self._device, self._timeout = device, timeout

    def connect(self, kind: str, store: Any, rank: int, size: int) -> "NcclConnection":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        with torch.cuda.device(self._device):
            made = dist.ProcessGroupNCCL(store, rank, size, options)
            connection = NcclConnection(made, kind, rank, self._device, self._timeout)
            connection.warm_up()
        return connection


class NcclConnection:
    def __init__(
        self, process_group: Any, kind: str, rank: int, device: torch.device, timeout: timedelta
    ) -> None:
        self._process_group, self._kind, self._rank = process_group, kind, rank
        self.device, self._timeout_s = device, timeout.total_seconds()
        self._abort: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def gives(self) -> int:
        if self._kind == "link":
            return 0 if self._rank == 0 else 2
        return _TURNS.get(self._kind, 0)

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> "_NcclOperation":
        options = dist.AllreduceOptions()
        options.reduceOp = OPS[op]
        return self._start(lambda: self._process_group.allreduce([tensor], options))

    def gather(self, out: Tensor, tensor: Tensor) -> "_NcclOperation":
        options = AllgatherOptions()
        return self._start(lambda: self._process_group._allgather_base(out, tensor, options))

    def scatter(self, out: Tensor, tensor: Tensor) -> "_NcclOperation":
        options = ReduceScatterOptions()
        return self._start(lambda: self._process_group._reduce_scatter_base(out, tensor, options))

    def send(self, tensor: Tensor, peer: int) -> "_NcclOperation":
        return self._start(lambda: self._process_group.send([tensor], peer, 0))

    def receive(self, tensor: Tensor, peer: int) -> "_NcclOperation":
        return self._start(lambda: self._process_group.recv([tensor], peer, 0))

    def _start(self, start: Callable[[], Any]) -> "_NcclOperation":
        try:
            return _NcclOperation(start(), self.has_completed, self._timeout_s)
        except RuntimeError:
            end_group_calls(_library())
            raise

    def has_completed(self, work: Any) -> bool:
        """Of one of its operations, with or without success; when it is broken off, nothing more
        completes.
        """
        with self._lock:
            return self._abort is None and bool(work.is_completed())

    def warm_up(self) -> None:
        """Makes the communicator: that of messages is another one than that of collectives."""
        tensor = torch.zeros(1, device=self.device)
        if self._kind != "link":
            made = self.all_reduce(tensor, "sum")
        else:
            made = self.receive(tensor, 0) if self._rank else self.send(tensor, 1)
        reason = made.wait(lambda: self._abort is not None)
        if reason:
            raise RuntimeError(reason)

    def break_off(self) -> None:
        """Returns when the abort has begun: from then on no kernel of the group moves anything."""
        process_group, begun = self._process_group, threading.Event()

        def abort() -> None:
            begun.set()
            process_group.abort()

        with self._lock:
            if self._abort is not None or process_group is None:
                return
            self._abort = threading.Thread(target=abort, daemon=True, name="abort")
        self._abort.start()
        begun.wait(_ABORT_BEGUN_S)

    def wait_broken_off(self, timeout_s: float) -> None:
        if self._abort is not None:
            self._abort.join(timeout_s)

    def close(self) -> None:
        """By an abort, too: shutting down waits for the other members to do the same."""
        self.break_off()
        self.wait_broken_off(self._timeout_s)
        self._process_group = None


class _NcclOperation:
    def __init__(self, work: Any, has_completed: Callable[[Any], bool], timeout_s: float) -> None:
        self._work, self._has_completed, self._timeout_s = work, has_completed, timeout_s
        self._is_done = False

    def is_done(self) -> bool:
        """For torch an operation that failed has completed, too; only waiting for it tells."""
        if not self._is_done and self._has_completed(self._work):
            self._is_done = not self._error()
        return self._is_done

    def wait(self, is_given_up: Callable[[], bool]) -> str:
        deadline = time.monotonic() + self._timeout_s
        while not self._has_completed(self._work):
            if is_given_up():
                return LEFT_BEHIND
            if time.monotonic() > deadline:
                return f"it has not ended in {self._timeout_s:.0f} s"
            time.sleep(_POLL_S)
        return self._error()

    def wait_on_device(self, is_given_up: Callable[[], bool]) -> str:
        return self._error()

    def _error(self) -> str:
        """What is known to have gone wrong; work that is queued after this sees the result."""
        result = self._work.get_future_result()
        if result.done() and (found := result.value()) != _SUCCESS:
            return f"it has failed, with result {found} of torch's WorkResult"
        try:
            self._work.wait()
        except RuntimeError as error:
            return str(error)
        return ""
