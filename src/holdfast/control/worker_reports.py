"""What a trainer is given and what it tells, apart from torch: read where there is none."""

import msgspec

from holdfast.control.message import Message
from holdfast.detect.facts import PathReport, Workload
from holdfast.plan.plan import Plan


class Planned(msgspec.Struct, frozen=True):
    """A plan and the first step that runs under it."""

    at_step: int
    plan: Plan


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one worker measured in a step, in seconds. Its size depends on what the worker holds
    and on how many it talks to, not on the number of micro-batches.
    """

    times: dict[str, float]
    """By kind of computation (F, B or I, W), summed over the step."""
    units: dict[int, tuple[float, float, float]] = {}
    """By number: forward, backward for the input, backward for the weights of one micro-batch."""
    paths: tuple[PathReport, ...] = ()
    """Messages that it received, and reductions: of these, only the smallest time of all members
    is free of waiting.
    """
    workloads: tuple[Workload, ...] = ()
    """Of all micro-batches; the first worker of a plan tells them."""
    action: float = 0.0
    """What a computation costs besides its units."""
    agree: float = 0.0
    """With the wait for the last worker."""
    update: float = 0.0
    peak_bytes: int = 0
    """Of memory, so far."""
    is_emulated: bool = False


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
    measured: StepTimes | None = None
    """None: not an ordinary step."""
    eval_loss: float | None = None
    eval_tokens: int = 0
    """Of the validation set, evaluated before the step (`Outcome`)."""
    eval_s: float = 0.0
    """How long that took here, not counted in `seconds`."""


class ChangeReport(Message, frozen=True):
    """One worker's view of a change of plan."""

    step: int
    epoch: int
    stall_s: float
    bytes_received: int
    """From other workers."""
    num_groups_kept: int
    num_groups_made: int
    bytes_from_memory: int = 0
    """Of a joiner: from snapshots."""


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
    num_groups_kept: int = 0
    """Of its groups, those that lived on."""
    num_groups_made: int = 0
