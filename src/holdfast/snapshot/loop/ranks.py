"""The ranks of a training loop, as far as snapshots need them: who is where, and small agreements.

Every purpose has a process group of its own (gloo, on the CPU): operations of two threads on one
group would meet in different orders on different ranks.
"""

import socket
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

TIMEOUT = timedelta(hours=6)
"""Of an agreement between threads beside the loop: they wait for the slowest rank's next version. A
rank that dies breaks its connections at once.
"""


class Ranks:
    """Votes and exchanges of one thread; `other` makes those of another thread."""

    def __init__(self, node: str = "") -> None:
        self.is_joint = dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if self.is_joint else 0
        self.size = dist.get_world_size() if self.is_joint else 1
        self.group: Any = None
        if self.is_joint:
            self.group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self.node = node or socket.gethostname()
        self.nodes: list[str] = self.gather(self.node)

    @property
    def is_leader(self) -> bool:
        """Of all ranks of its node, the first one."""
        return self.nodes.index(self.node) == self.rank

    def other(self) -> "Ranks":
        return Ranks(self.node)

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in order."""
        if not self.is_joint:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, self.group)
        return found

    def least(self, value: int) -> int:
        return self._reduce(value, dist.ReduceOp.MIN)

    def most(self, value: int) -> int:
        return self._reduce(value, dist.ReduceOp.MAX)

    def all(self, answer: bool) -> bool:
        return bool(self.least(int(answer)))

    def _reduce(self, value: int, how: Any) -> int:
        votes = torch.tensor([value])
        if self.is_joint:
            dist.all_reduce(votes, how, self.group)
        return int(votes[0])
