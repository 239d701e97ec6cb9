"""A timeline as numbers for other programs: what `holdfast plan show --json` prints."""

from typing import Any

from holdfast.observe.timeline_view import Notes, micro_batches_per_replica
from holdfast.plan.actions import Action, format_action
from holdfast.plan.memory import device_memory, peak_in_flight
from holdfast.plan.timeline import Timeline


def timeline_numbers(timeline: Timeline, notes: Notes) -> dict[str, Any]:
    plan = timeline.layout.plan
    path = [
        {
            "action": format_action(Action(span.kind, span.micro_batch, span.stage)),
            "start": span.start,
            "end": span.end,
        }
        for span in timeline.critical_path()
    ]
    return {
        "iteration_time": timeline.iteration_time,
        "bubble_fraction": timeline.bubble_fraction,
        "schedule": plan.schedule.kind,
        "micro_batches": plan.num_micro_batches,
        "micro_batches_per_replica": micro_batches_per_replica(plan),
        "time_unit": notes.time_unit,
        "costs": notes.costs,
        "workers": _workers(timeline),
        "critical_path": path,
    }


def _workers(timeline: Timeline) -> list[dict[str, Any]]:
    plan, memory = timeline.layout.plan, device_memory(timeline)
    lanes = [_lane(timeline, lane) for lane in range(len(timeline.layout.lanes))]
    workers: list[dict[str, Any]] = []
    for name in plan.workers:
        use = memory[name]
        workers.append(
            {
                "name": name,
                "role": plan.role(name),
                **lanes[timeline.layout.lane_of_worker[name]],
                "memory_bytes": use.total,
                "memory": {
                    "parameters": use.parameters,
                    "gradients": use.gradients,
                    "optimizer": use.optimizer,
                    "activations": use.activations,
                },
            }
        )
    return workers


def _lane(timeline: Timeline, lane: int) -> dict[str, Any]:
    """What all workers of a lane share.

    `peak_activations` counts the (stage, micro-batch) pairs whose activations are held at once.
    """
    busy = timeline.busy(lane)
    return {
        "busy": busy,
        "idle": timeline.iteration_time - busy,
        "gaps": [list(gap) for gap in timeline.gaps(lane)],
        "peak_activations": peak_in_flight(timeline, lane),
    }
