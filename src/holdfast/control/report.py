"""What a frozen worker tells: exactly where it is.

A report is a promise. The worker has broken its groups, finished its local kernel, and does nothing
more in any older epoch; so what it says stays true until it is told otherwise.

Versions count finished steps: a worker at version v has done steps 0 .. v - 1 and is in step v.

Gradients are counted by *slot*: one exchange of one unit, (unit, number of the exchange), of the
plan under which the step was begun. Until its exchange has ended here, a slot is a local sum. What
is in a sum is said by *addend*, (unit, number of the exchange, unit that adds), since a tied tensor
gets its gradient from two units. From the end of the exchange on, the slot is the reduced result.
The losses of micro-batches are a slot, too: they are added up like gradients, each exactly once.
"""

import msgspec

Slot = tuple[int, int]
Addend = tuple[int, int, int]

LOSS: Slot = (-1, 0)
LOSS_ADDEND: Addend = (-1, 0, -1)


class Member(msgspec.Struct, frozen=True, order=True):
    """A worker as one process: its name stays, its incarnation counts up with every start."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"


class Outcome(msgspec.Struct, frozen=True):
    """What a step came to, as recorded where it was applied. Who rolls forward uses it and does not
    compute its own: a norm summed in another order has other bits.
    """

    step: int
    epoch: int
    """In which the step was agreed."""
    loss: float
    """Mean per token."""
    num_tokens: int
    norm: float
    """Of the mean gradient, before clipping."""
    clip_factor: float
    applied: bool
    """False: a gradient was not finite, or no target counts; no worker applies the step."""
    rate_factor: float = 1.0
    """Of the learning rate; not 1 where a step was completed without its lost micro-batches."""
    eval_loss: float | None = None
    """Mean per token of the validation set, of the state before the step; None: it was not due."""
    eval_tokens: int = 0

    @property
    def gradient_factor(self) -> float:
        """What summed gradients are multiplied with before the update."""
        return self.clip_factor / self.num_tokens


class GroupLevel(msgspec.Struct, frozen=True):
    """A communication group that is at rest: no operation of it is under way or was broken off."""

    size: int
    counts: tuple[int, ...] = ()
    """Of its operations: those of all members, and messages by sender."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    member: Member
    round: int
    """The freeze it answers."""
    epoch: int
    """The last order it has entered."""
    lineage: int = 0
    version: int
    base: int
    """The epoch whose plan numbers the slots below: the one in which step `version` was begun."""
    sums: dict[Addend, tuple[int, ...]] = {}
    """Of step `version`: the micro-batches in each local sum, in order."""
    results: tuple[Slot, ...] = ()
    """Of step `version`: reduced, completion seen, and the group not given up since."""
    outcome: Outcome | None = None
    """Of step `version - 1`, where it took part in it."""
    groups: dict[str, GroupLevel] = {}
    """That are at rest here, by name: of the epoch that made them, their kind and their members."""
