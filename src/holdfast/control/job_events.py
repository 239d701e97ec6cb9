"""What happened in a job, as the coordinator found it out: values from which the run log makes the
lines of its journal.
"""

import msgspec

from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport, StepReport

EpochReport = ChangeReport | RecoveryReport | RestoreReport


class StepCompleted(msgspec.Struct, frozen=True):
    """All have reported a step."""

    report: StepReport
    """Of one of them: the outcome is the same for all."""
    seconds: float
    """Of the slowest."""


class EpochEntered(msgspec.Struct, frozen=True, kw_only=True):
    """All are in an epoch."""

    number: int
    before: int
    """The epoch it follows."""
    reason: str
    reports: dict[str, EpochReport]
    lost: tuple[str, ...] = ()
    """Workers that had a seat in the epochs before, since the last that all have entered."""
    steps_redone: int = 0


class AllReady(msgspec.Struct, frozen=True):
    """All workers are in the first order: steps can begin."""

    pids: dict[str, int]


class WorkerBlamed(msgspec.Struct, frozen=True):
    """The failure that ends the job."""

    worker: str
    role: str
    step: int
    why: str


JobEvent = StepCompleted | EpochEntered | AllReady | WorkerBlamed
