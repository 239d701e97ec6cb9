"""What a worker tells of the times of one step, from all that was measured in it."""

import resource
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from holdfast.control.worker_reports import StepTimes
from holdfast.detect.facts import PathReport, Workload
from holdfast.engine.data import DataSource
from holdfast.engine.measure import Sample
from holdfast.plan.plan import Plan

KINDS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
MAX_PATHS = 32
"""Told of one worker; it has this many only where it talks to very many others."""


def step_times(
    found: Mapping[Sample, Sequence[float]],
    paths: Sequence[PathReport],
    *,
    workloads: tuple[Workload, ...],
    device: torch.device,
    is_emulated: bool,
) -> StepTimes:
    """`found`: all samples of the step."""
    times: dict[str, float] = {}
    units: dict[int, list[float]] = {}
    for (what, number), seconds in found.items():
        if what not in KINDS:
            continue
        times[KINDS[what]] = times.get(KINDS[what], 0.0) + sum(seconds)
        one = units.setdefault(number, [0.0, 0.0, 0.0])
        mean = fmean(seconds)
        match what:
            case "forward":
                one[0] = mean
            case "backward":
                one[1] = one[2] = mean / 2
            case "backward_input":
                one[1] = mean
            case "backward_weight":
                one[2] = mean
    return StepTimes(
        times=times,
        units={number: (one[0], one[1], one[2]) for number, one in sorted(units.items())},
        paths=tuple(paths[:MAX_PATHS]),
        workloads=workloads,
        action=_mean(found, "action"),
        agree=_mean(found, "agree"),
        update=_mean(found, "optimizer"),
        peak_bytes=peak_bytes(device),
        is_emulated=is_emulated,
    )


def _mean(found: Mapping[Sample, Sequence[float]], what: str) -> float:
    seconds = found.get((what, -1))
    return fmean(seconds) if seconds else 0.0


def step_workloads(plan: Plan, worker: str, data: DataSource, step: int) -> tuple[Workload, ...]:
    """Of all micro-batches, as one worker tells them for all."""
    if worker != plan.workers[0]:
        return ()
    return tuple(data.workload(step, number) for number in range(plan.num_micro_batches))


def peak_bytes(device: torch.device) -> int:
    """The most memory that this worker has used: of its device, or of its process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
