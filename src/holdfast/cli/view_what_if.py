"""The same run under checkpoint restart, by the simulator, for the page and the report."""

from typing import Any

from holdfast.observe.report import time_by_cause
from holdfast.observe.run.incidents import COORDINATOR, JOINER, RUN, Incident
from holdfast.observe.run.model import RunModel
from holdfast.observe.simulation_charts import CAUSE_COLOURS
from holdfast.sim.cluster.what_if import SeenFailure, SeenRun, under_restarts

CHECKPOINT_S = 600
"""Between checkpoints, as jobs have them by default."""


def what_if(run: RunModel) -> list[dict[str, Any]]:
    """One entry per way in which it could have gone; none while nothing has happened."""
    seen = _seen(run)
    if not seen.failures or not seen.step_ms:
        return []
    ways = {
        f"checkpoint restart, a checkpoint every {CHECKPOINT_S // 60} min": 1000 * CHECKPOINT_S,
        "checkpoint restart, a checkpoint every step": 0,
    }
    return [_entry(name, seen, every_ms) for name, every_ms in ways.items()]


def _entry(name: str, seen: SeenRun, save_every_ms: int) -> dict[str, Any]:
    found = under_restarts(seen, save_every_ms)
    parts = [
        {
            "cause": cause,
            "seconds": round(seconds, 3),
            "share": 1000 * seconds / found.wall_ms,
            "colour": CAUSE_COLOURS[cause],
        }
        for cause, seconds in time_by_cause(found.budget).items()
    ]
    return {
        "name": name,
        "seconds": found.wall_ms / 1000,
        "ratio": found.budget.goodput,
        "parts": parts,
    }


def _seen(run: RunModel) -> SeenRun:
    budget = run.goodput()
    workers = {worker.name: number for number, worker in enumerate(run.workers.in_order())}
    failures = (_failure(one, run, workers) for one in run.incidents)
    return SeenRun(
        num_devices=max(1, len(workers)),
        wall_ms=round(budget.total_ms),
        productive_ms=budget.productive_ms,
        step_ms=1000 * run.usual_step_s,
        failures=tuple(failure for failure in failures if failure is not None),
        start_ms=round(budget.lost_ms.get("starting", 0.0)),
        first_step_ms=round(budget.lost_ms.get("first step", 0.0)),
    )


def _failure(incident: Incident, run: RunModel, workers: dict[str, int]) -> SeenFailure | None:
    """A job without fault tolerance survives neither; what joins is not there in it."""
    if incident.kind in (COORDINATOR, JOINER):
        return None
    hit = tuple(workers[lost.worker] for lost in incident.lost if lost.worker in workers)
    if incident.kind == RUN:
        hit = tuple(workers.values())
    is_hang = any(lost.kind == "hung" for lost in incident.lost)
    at_ms = round(1000 * (incident.at_s - run.started_s))
    return SeenFailure(at_ms, hit, is_hang) if hit else None
