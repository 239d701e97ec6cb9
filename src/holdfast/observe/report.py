"""The summary of a run, made from its events."""

from collections.abc import Sequence
from statistics import median

import msgspec

from holdfast.observe.events import JobEnded, JobStarted, PlanChanged, Recovered, Restored, StepDone

WARM_UP_STEPS = 2
"""At the beginning; not counted in the median."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """report.json"""

    name: str
    version: str
    outcome: str
    """finished, stopped or failed"""
    reason: str
    run_dir: str
    model: str
    num_parameters: int
    num_workers: int
    steps: int
    """Done in this run."""
    next_step: int
    first_loss: float | None
    final_loss: float | None
    tokens: int
    seconds: float
    """From the first process to the last."""
    median_step_s: float | None
    tokens_per_s: float | None
    """In the steps themselves."""
    longest_stall_s: float
    bytes_moved: int
    staging_bytes: int
    """Memory the reduction needs beyond the gradients, on the worker that needs most."""
    final_bytes: int
    """Of parameters and moments below final/; 0 = not asked for."""
    changes: tuple[PlanChanged, ...] = ()
    recoveries: tuple[Recovered, ...] = ()
    restores: tuple[Restored, ...] = ()


def make_report(
    started: JobStarted,
    steps: Sequence[StepDone],
    changes: Sequence[PlanChanged],
    ended: JobEnded,
    *,
    recoveries: Sequence[Recovered] = (),
    restores: Sequence[Restored] = (),
    staging_bytes: int = 0,
    final_bytes: int = 0,
) -> RunReport:
    times = [step.step_time_s for step in steps]
    warm = times[WARM_UP_STEPS:] or times
    tokens = sum(step.tokens for step in steps)
    return RunReport(
        name=started.name,
        version=started.version,
        outcome=ended.outcome,
        reason=ended.reason,
        run_dir=started.run_dir,
        model=started.model,
        num_parameters=started.num_parameters,
        num_workers=started.num_workers,
        steps=len({step.step for step in steps}),
        next_step=ended.next_step,
        first_loss=steps[0].loss if steps else None,
        final_loss=steps[-1].loss if steps else None,
        tokens=tokens,
        seconds=ended.seconds,
        median_step_s=median(warm) if warm else None,
        tokens_per_s=tokens / sum(times) if times else None,
        longest_stall_s=max((change.stall_s for change in changes), default=0.0),
        bytes_moved=sum(change.bytes_moved for change in changes),
        staging_bytes=staging_bytes,
        final_bytes=final_bytes,
        changes=tuple(changes),
        recoveries=tuple(recoveries),
        restores=tuple(restores),
    )


def format_report(report: RunReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
