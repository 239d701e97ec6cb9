"""Which version do the others have? Asked before the oldest one in memory is overwritten.

A worker has two slots. While it writes version v into one, the other must hold a version that is
complete everywhere, or a death at that moment leaves no version that all workers have. So
after every version, sealed or given up, all say so in one small all-reduce, for which training does
not wait; the next version is written once the answer is there. All get the same answer, so all
keep the same version.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.snapshot.layout import Version


class Others(Protocol):
    @property
    def complete(self) -> Version | None:
        """The newest version that all are known to have."""

    def announce(self, version: Version, *, sealed: bool) -> None:
        """Said of every version, by all workers, in the same order."""

    def is_settled(self) -> bool:
        """Have all answered to everything? Never waits."""


class Alone:
    """For a worker that is alone."""

    def __init__(self, complete: Version | None = None) -> None:
        self.complete = complete

    def announce(self, version: Version, *, sealed: bool) -> None:
        if sealed:
            self.complete = version

    def is_settled(self) -> bool:
        return True


class VersionAgreement:
    """Over a process group of its own: other traffic would come between the answers.

    `start` begins an all-reduce by minimum of the tensor and returns something with
    `is_completed`.
    """

    def __init__(self, start: Callable[[Tensor], Any], complete: Version | None = None) -> None:
        self._start = start
        self._open: deque[tuple[Version, Tensor, Any]] = deque()
        self.complete = complete

    def announce(self, version: Version, *, sealed: bool) -> None:
        vote = torch.tensor([int(sealed)])
        self._open.append((version, vote, self._start(vote)))

    def is_settled(self) -> bool:
        while self._open and self._open[0][2].is_completed():
            version, vote, _ = self._open.popleft()
            if int(vote[0]):
                self.complete = version
        return not self._open


def group_of(process_group: Any, complete: Version | None = None) -> VersionAgreement:
    """The others of a torch process group (a gloo one: the vote is a CPU tensor)."""

    def start(vote: Tensor) -> Any:
        return dist.all_reduce(vote, dist.ReduceOp.MIN, process_group, async_op=True)

    return VersionAgreement(start, complete)
