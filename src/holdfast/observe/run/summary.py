"""The run model as plain data, for the page: times in seconds since the job was started."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.observe.goodput import BUCKET_OF
from holdfast.observe.report import PRODUCTIVE, time_by_cause
from holdfast.observe.run.incidents import Incident, count_failures
from holdfast.observe.run.model import RunModel
from holdfast.observe.run.workers import WorkerRecord
from holdfast.observe.simulation_charts import CAUSE_COLOURS

MAX_HISTORY = 12
MAX_CHECKPOINTS = 20
SILENT_AFTER_S = 30.0
"""A run without news for this long, and for many steps, is taken as it was then."""
SILENT_STEPS = 20


def present(run: RunModel, clock_s: float) -> tuple[float, bool]:
    """(until when time counts, whether there has been no news for too long)."""
    if run.ended is not None:
        return run.now_s, False
    silent_s = clock_s - run.now_s
    if silent_s > SILENT_AFTER_S + SILENT_STEPS * run.usual_step_s:
        return run.now_s, True
    return max(clock_s, run.now_s), False


def state_of(run: RunModel, is_silent: bool) -> str:
    """In a word: starting, training, recovering, silent, finished, stopped or failed."""
    if run.ended is not None:
        return run.ended.outcome
    if is_silent:
        return "silent"
    if not run.is_ready:
        return "starting"
    return "recovering" if run.is_recovering else "training"


def summarise(run: RunModel, roles: Mapping[str, str], clock_s: float) -> dict[str, Any]:
    """Everything but incidents, notes and steps, which grow with the run."""
    now_s, is_silent = present(run, clock_s)
    started = run.started
    return {
        "state": state_of(run, is_silent),
        "reason": run.ended.reason if run.ended is not None else "",
        "started_unix_s": run.started_s,
        "now_s": now_s - run.started_s,
        "name": started.name if started else "",
        "model": started.model if started else "",
        "version": started.version if started else "",
        "run_dir": started.run_dir if started else "",
        "num_parameters": started.num_parameters if started else 0,
        "num_steps": started.steps if started else 0,
        "next_step": run.next_step,
        "steps_redone": run.steps_redone,
        "shape": run.shape,
        "term": run.term,
        "loss": run.series.last("loss"),
        "step_time_s": run.series.last("step_time_s"),
        "usual_step_s": run.usual_step_s,
        "tokens_per_s": run.series.last("tokens_per_s"),
        "longest_stall_s": run.longest_stall_s(),
        "failures": count_failures(run.incidents),
        "goodput": _goodput(run, now_s),
        "workers": [_worker(w, roles, run.started_s) for w in run.workers.in_order()],
        "checkpoints": _checkpoints(run),
        "snapshot": _snapshot(run, now_s),
    }


def _goodput(run: RunModel, now_s: float) -> dict[str, Any]:
    budget = run.goodput(now_s)
    total_s = budget.total_ms / 1e3
    parts = [
        {
            "cause": cause,
            "bucket": "GOODPUT" if cause == PRODUCTIVE else BUCKET_OF[cause],
            "seconds": round(seconds, 3),
            "share": seconds / total_s if total_s else 0.0,
            "colour": CAUSE_COLOURS[cause],
        }
        for cause, seconds in time_by_cause(budget).items()
    ]
    return {"ratio": budget.goodput, "total_s": total_s, "parts": parts}


def _worker(worker: WorkerRecord, roles: Mapping[str, str], started_s: float) -> dict[str, Any]:
    return {
        "name": worker.name,
        "node": worker.node,
        "role": roles.get(worker.name, ""),
        "state": worker.health,
        "slow": worker.slow,
        "since_s": worker.since_s - started_s,
        "process": worker.incarnation,
        "failure": worker.failure,
        "num_failures": worker.num_failures,
        "history": [(at_s - started_s, words) for at_s, words in worker.history[-MAX_HISTORY:]],
    }


def _snapshot(run: RunModel, now_s: float) -> dict[str, Any]:
    """What there is, where it lies, and what could be lost now without losing state."""
    last = run.protections[-1] if run.protections else None
    return {
        "step": run.snapshot_step,
        "age_s": run.snapshot_age_s(now_s),
        "kept": run.provided,
        "lacking": run.lacking,
        "against": list(last.against) if last is not None else [],
        "not_against": list(last.not_against) if last is not None else [],
        "means": last.reason.split("; ") if last is not None else [],
        "copied_bytes": run.copied_bytes,
        "in_bubbles": run.copied_in_bubbles,
        "wait_s": run.copy_wait_s,
    }


def _checkpoints(run: RunModel) -> dict[str, Any]:
    newest = [
        {"at_s": at_s - run.started_s, "step": e.step, "path": e.path, "seconds": e.seconds}
        for at_s, e in run.checkpoints[-MAX_CHECKPOINTS:]
    ]
    return {
        "number": len(run.checkpoints),
        "num_failed": run.num_checkpoints_failed,
        "newest": newest[::-1],
    }


def summarise_incidents(
    run: RunModel, indices: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """All, or those at these places of the list."""
    wanted = range(len(run.incidents)) if indices is None else indices
    return [_incident(run.incidents[index], run.started_s) for index in wanted]


def unsettled(run: RunModel) -> list[int]:
    """Places of incidents that may still change."""
    return [index for index, incident in enumerate(run.incidents) if incident.whole_s is None]


def _incident(incident: Incident, started_s: float) -> dict[str, Any]:
    over = incident.over_s
    return {
        "number": incident.number,
        "at_s": incident.at_s - started_s,
        "step": incident.step,
        "kind": incident.kind,
        "title": incident.title,
        "seen": [f"{lost.worker}: {lost.reason}" for lost in incident.lost],
        "faults": incident.faults,
        "decisions": incident.decisions,
        "runner_ups": incident.runner_ups,
        "shape_before": incident.shape_before,
        "shape": incident.shape,
        "micro_batches": incident.micro_batches,
        "steps_redone": incident.steps_redone,
        "stall_s": incident.stall_s,
        "over_s": None if over is None else over - started_s,
        "whole_after_s": incident.whole_after_s,
        "missing": incident.missing,
        "costs_s": incident.costs_s,
        "plan_before": incident.file_before,
        "plan": incident.file,
        "sources": incident.sources,
    }


def summarise_notes(run: RunModel, first: int = 0) -> list[tuple[float, int, str, str]]:
    """(time, steps done, kind, text) from this index on."""
    return [
        (round(note.at_s - run.started_s, 3), note.step, note.kind, note.text)
        for note in run.notes[first:]
    ]
