"""What a trainer is given and what it tells, apart from torch: read where there is none."""

import msgspec

from holdfast.control.message import Message
from holdfast.plan.plan import Plan


class Planned(msgspec.Struct, frozen=True):
    """A plan and the first step that runs under it."""

    at_step: int
    plan: Plan


class StepReport(Message, frozen=True):
    step: int
    epoch: int
    seconds: float
    loss: float
    norm: float
    num_tokens: int
    learning_rate: float
    applied: bool
    checksums: dict[str, int] = msgspec.field(default_factory=dict)


class ChangeReport(Message, frozen=True):
    """One worker's view of a change of plan."""

    step: int
    epoch: int
    stall_s: float
    bytes_received: int
    num_groups_kept: int
    num_groups_made: int


class RestoreReport(Message, frozen=True):
    """One worker's view of going back to a snapshot."""

    step: int
    """The next one."""
    epoch: int
    stall_s: float
    """From the moment it could not go on; from its order, if it is new."""
    load_s: float
    bytes_by_origin: dict[str, int]
    reasons: tuple[str, ...] = ()
    """Why some of it did not come from where it was looked for first."""


class RecoveryReport(Message, frozen=True):
    """One worker's view of a recovery."""

    step: int
    """The one that was in flight."""
    epoch: int
    stall_s: float
    """From the moment it could not go on to the end of the completed step."""
    num_micro_batches: int
    """That ran again, over all workers."""
    rolled_forward: bool
    """It had to apply a step that others had applied already."""
