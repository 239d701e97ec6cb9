"""The summary of a run: what report.json holds, made from the run model."""

from typing import Any

import msgspec
import numpy as np

from holdfast.observe.events import JobEnded, JobStarted, PlanChanged, Recovered, Restored
from holdfast.observe.goodput import BUCKET_OF, Budget
from holdfast.observe.run.incidents import Incident, count_failures
from holdfast.observe.run.model import RunModel

WARM_UP_STEPS = 2
"""At the beginning; not counted in the median."""
PRODUCTIVE = "productive"


class IncidentSummary(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    what: str
    reason: str
    at_s: float
    """Since the job was started."""
    step: int
    shape: str
    stall_s: float
    """How much later than usual it was over, with the end of a step."""
    over_step: int | None = None
    """That step; None: it is not over."""
    micro_batches: int
    """That ran again."""
    steps_redone: int
    whole_after_s: float | None
    """With the stall, until all workers were back; None: they are not."""
    costs_s: dict[str, float]
    faults: tuple[str, ...] = ()
    """Those on purpose that led to it."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """report.json"""

    name: str
    version: str
    outcome: str
    """finished, stopped, failed; unfinished: it runs, or was killed"""
    reason: str
    run_dir: str
    model: str
    num_parameters: int
    num_workers: int
    steps: int
    """Done in this run, and kept."""
    next_step: int
    first_loss: float | None
    final_loss: float | None
    eval_loss: float | None = None
    """Of the validation set, when it was evaluated last."""
    eval_step: int | None = None
    """How many steps were done then."""
    tokens: int
    seconds: float
    """From the first process to the last event: the wall time."""
    median_step_s: float | None
    tokens_per_s: float | None
    """In the steps themselves."""
    failures: dict[str, int] = {}
    """By kind; a lost node is one failure."""
    not_back: tuple[str, ...] = ()
    """Workers that were lost and have not come back."""
    steps_redone: int = 0
    micro_batches_redone: int = 0
    longest_stall_s: float = 0.0
    """Of recoveries, restores and planned changes."""
    downtime_s: float = 0.0
    """Time without training after the first step, by failures and changes."""
    goodput: float = 0.0
    """The share of the wall time that produced kept steps."""
    time_s: dict[str, float] = {}
    """Where the wall time went, by cause; adds up to `seconds`."""
    badput_s: dict[str, float] = {}
    """Lost time in the names of Google's goodput library."""
    incidents: tuple[IncidentSummary, ...] = ()
    protected_against: tuple[str, ...] = ()
    """Losses that the job survived in the end."""
    not_protected_against: tuple[str, ...] = ()
    protection_changes: int = 0
    """How often that changed after it was told first."""
    lacking: tuple[str, ...] = ()
    """Protection that was asked for and could not be had, with the remedy."""
    checkpoints: int = 0
    checkpoints_failed: int = 0
    copied_bytes: int = 0
    """Into snapshots in memory, by all workers."""
    copied_in_bubbles: float | None = None
    """The share of them that was copied while training waited for something else."""
    copy_wait_s: float = 0.0
    """What training has waited for copies, at most; in `time_s` it is part of the steps."""
    copy_cost: float = 0.0
    """The same as a share of the time of all steps."""
    bytes_moved: int = 0
    staging_bytes: int = 0
    """Memory the reduction needs beyond the gradients, on the worker that needs most."""
    final_bytes: int = 0
    """Of parameters and moments below final/; 0 = not asked for."""
    changes: tuple[PlanChanged, ...] = ()
    recoveries: tuple[Recovered, ...] = ()
    restores: tuple[Restored, ...] = ()


def make_report(
    started: JobStarted, run: RunModel, *, staging_bytes: int = 0, final_bytes: int = 0
) -> RunReport:
    ended = run.ended or JobEnded(
        outcome="unfinished", reason="", next_step=run.next_step, loss=None, seconds=run.wall_s
    )
    budget = run.goodput()
    return RunReport(
        name=started.name,
        version=started.version,
        outcome=ended.outcome,
        reason=ended.reason,
        run_dir=started.run_dir,
        model=started.model,
        num_parameters=started.num_parameters,
        num_workers=started.num_workers,
        next_step=ended.next_step,
        seconds=run.wall_s,
        failures=count_failures(run.incidents),
        not_back=tuple(run.workers.missing()),
        steps_redone=run.steps_redone,
        micro_batches_redone=sum(incident.micro_batches for incident in run.incidents),
        longest_stall_s=run.longest_stall_s(),
        downtime_s=run.downtime_s(),
        goodput=budget.goodput,
        time_s=time_by_cause(budget),
        badput_s={name: share * budget.total_ms / 1e3 for name, share in budget.buckets().items()},
        incidents=tuple(_summary(incident, run.started_s) for incident in run.incidents),
        protected_against=run.protections[-1].against if run.protections else (),
        not_protected_against=run.protections[-1].not_against if run.protections else (),
        protection_changes=max(0, len(run.protections) - 1),
        lacking=tuple(dict.fromkeys(run.lacking)),
        checkpoints=len(run.checkpoints),
        checkpoints_failed=run.num_checkpoints_failed,
        **_copies(run),
        bytes_moved=sum(change.bytes_moved for change in run.changes),
        staging_bytes=staging_bytes,
        final_bytes=final_bytes,
        changes=tuple(run.changes),
        recoveries=tuple(run.recoveries),
        restores=tuple(run.restores),
        **_step_numbers(run),
    )


def time_by_cause(budget: Budget) -> dict[str, float]:
    """Seconds, the productive ones first."""
    lost = {cause: budget.lost_ms[cause] / 1e3 for cause in BUCKET_OF if cause in budget.lost_ms}
    return {PRODUCTIVE: budget.productive_ms / 1e3, **lost}


def _copies(run: RunModel) -> dict[str, Any]:
    step_s = float(run.series.column("step_time_s").sum())
    copied = run.copied_bytes
    return {
        "copied_bytes": copied,
        "copied_in_bubbles": run.copied_in_bubbles / copied if copied else None,
        "copy_wait_s": run.copy_wait_s,
        "copy_cost": run.copy_wait_s / step_s if step_s else 0.0,
    }


def _step_numbers(run: RunModel) -> dict[str, Any]:
    """Over the steps that were kept."""
    kept = run.series.kept(run.next_step)
    times = run.series.column("step_time_s")[kept]
    warm = times[WARM_UP_STEPS:] if len(times) > WARM_UP_STEPS else times
    tokens = int(run.series.column("tokens")[kept].sum())
    return {
        "steps": int(kept.sum()),
        "first_loss": run.series.first("loss"),
        "final_loss": run.series.last("loss"),
        "eval_loss": run.evaluations[-1].loss if run.evaluations else None,
        "eval_step": run.evaluations[-1].step if run.evaluations else None,
        "tokens": tokens,
        "median_step_s": float(np.median(warm)) if len(warm) else None,
        "tokens_per_s": tokens / float(times.sum()) if len(times) else None,
    }


def _summary(incident: Incident, started_s: float) -> IncidentSummary:
    return IncidentSummary(
        kind=incident.kind,
        what=incident.title,
        reason="; ".join(dict.fromkeys(lost.reason for lost in incident.lost)),
        at_s=incident.at_s - started_s,
        step=incident.step,
        shape=incident.shape,
        stall_s=incident.stall_s,
        over_step=incident.over_step,
        micro_batches=incident.micro_batches,
        steps_redone=incident.steps_redone,
        whole_after_s=incident.whole_after_s,
        costs_s=incident.costs_s,
        faults=tuple(incident.faults),
    )


def format_report(report: RunReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
