"""What happened in a job, as the coordinator found it out: values from which the run log makes the
lines of its journal.
"""

import msgspec

from holdfast.control.plan_question import PlanAnswer, PlanQuestion
from holdfast.control.plan_worth import PlanVerdict
from holdfast.control.report import Member
from holdfast.control.worker_reports import (
    ChangeReport,
    RecoveryReport,
    RestoreReport,
    StepReport,
    StepTimes,
)
from holdfast.detect.verdict import Verdict
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.protects import JobProtection

EpochReport = ChangeReport | RecoveryReport | RestoreReport


class StepCompleted(msgspec.Struct, frozen=True):
    """All have reported a step."""

    report: StepReport
    """Of one of them: the outcome is the same for all."""
    seconds: float
    """Of the slowest."""
    measured: dict[str, StepTimes] = {}
    """By worker; empty: it was no ordinary step."""
    copied: CopyCost = CopyCost()
    """For snapshots, since the step before."""


class StepsUnrecorded(msgspec.Struct, frozen=True):
    """Steps that were done, and of which all reports were lost with the processes that had them."""

    first: int
    last: int


class EpochEntered(msgspec.Struct, frozen=True, kw_only=True):
    """All are in an epoch."""

    number: int
    before: int | None
    """The epoch it follows; None: it is the first of its run."""
    reason: str
    reports: dict[str, EpochReport]
    lost: tuple[str, ...] = ()
    """Workers that had a seat in the epochs before, since the last that all have entered."""
    steps_redone: int = 0


class AllReady(msgspec.Struct, frozen=True):
    """All workers are in the first order: steps can begin."""

    pids: dict[str, int]


class SlownessFound(msgspec.Struct, frozen=True):
    """What the detector says of workers or links, or a probe of its suspects."""

    verdict: Verdict
    is_probed: bool = False


class WorkerBlamed(msgspec.Struct, frozen=True):
    """The failure that ends the job."""

    worker: str
    role: str
    step: int
    why: str


class SeatlessLost(msgspec.Struct, frozen=True):
    """A process without a seat is gone: it needs no verdict, but it is a failure like others."""

    member: Member
    reason: str


class IdleNodeDied(msgspec.Struct, frozen=True):
    """A node without any process, of which none is missing: the failure of a node all the same."""

    node: str
    reason: str


class ProtectionFound(msgspec.Struct, frozen=True):
    """What the job survives the loss of has changed."""

    protection: JobProtection


class PlanWeighed(msgspec.Struct, frozen=True):
    """The planner was asked, and has answered."""

    question: PlanQuestion
    answer: PlanAnswer
    verdict: PlanVerdict


JobEvent = (
    StepCompleted
    | StepsUnrecorded
    | EpochEntered
    | AllReady
    | WorkerBlamed
    | SlownessFound
    | SeatlessLost
    | IdleNodeDied
    | ProtectionFound
    | PlanWeighed
)


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the run log of the coordinators before has."""

    next_step: int
    step_epoch: int = 0
    """That agreed on the step before it."""
    epoch: int = -1
    """The last that all have entered."""
