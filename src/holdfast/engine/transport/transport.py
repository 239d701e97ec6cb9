"""What a group asks of the library below it.

A `Transport` makes connections for one worker; a `GroupConnection` is one group of workers as
this worker sees it. Operations are started in one order that all members share, since the strictest
library (NCCL) has no tags.

An operation ends twice. `wait_on_device`: work that is queued from now on sees its result; on the
host nothing is known yet. `wait`: it has ended, and the host has seen it. For a library that works
in host memory the two are the same.

`break_off` ends every operation of the group, on this worker and in the end on its peers. What a
device computes from the result of an operation that was broken off is worthless, so the groups of a
worker are broken off in an order (`GroupConnection.gives`): first those through which it gives, so
that nothing worthless reaches a peer, then those from which it takes.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

ReduceOp = Literal["sum", "max", "min"]

LEFT_BEHIND = "it has not ended, and is not waited for any more"


class Operation(Protocol):
    def is_done(self) -> bool: ...

    def wait(self, is_given_up: Callable[[], bool]) -> str:
        """Until it has ended, or `is_given_up`; what went wrong, or an empty text."""

    def wait_on_device(self, is_given_up: Callable[[], bool]) -> str:
        """Until later work on the device sees its result."""


class GroupConnection(Protocol):
    @property
    def device(self) -> torch.device:
        """Where the tensors of its operations have to be; a host transport takes any."""

    @property
    def gives(self) -> int:
        """Its turn to be broken off: 0 before 1 before 2."""

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> Operation: ...

    def gather(self, out: Tensor, tensor: Tensor) -> Operation:
        """Tensors of one size from all members, one behind the other."""

    def scatter(self, out: Tensor, tensor: Tensor) -> Operation:
        """The sum over all members, cut into equal parts: each member gets that of its rank."""

    def send(self, tensor: Tensor, peer: int) -> Operation: ...

    def receive(self, tensor: Tensor, peer: int) -> Operation: ...

    def break_off(self) -> None: ...

    def wait_broken_off(self, timeout_s: float) -> None:
        """Until nothing of what `break_off` began is under way."""

    def close(self) -> None:
        """Give back sockets and threads."""


class Transport(Protocol):
    @property
    def name(self) -> str: ...

    def connect(self, kind: str, store: Any, rank: int, size: int) -> GroupConnection:
        """Raises RuntimeError if it cannot."""
