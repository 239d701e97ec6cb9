"""Measuring: how long every unit and every action takes, and the profile made of it.

On a CPU the clock is read around each call. On a device, events are recorded in the stream and
read at the end of the step, so that measuring waits for nothing.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile, UnitCost

Sample = tuple[str, int]
"""(kind, number): a unit's forward, say."""


class Stopwatch:
    """Times of the current run, in seconds. Cheap enough to be always on."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._uses_events = device is not None and device.type == "cuda"
        self._open: list[tuple[Sample, torch.cuda.Event, torch.cuda.Event]] = []
        self.samples: dict[Sample, list[float]] = defaultdict(list)

    @contextmanager
    def unit(self, kind: str, number: int) -> Iterator[None]:
        if self._uses_events:
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
            yield
            end.record()
            self._open.append(((kind, number), begin, end))
            return
        start = time.perf_counter()
        yield
        self.samples[kind, number].append(time.perf_counter() - start)

    def add(self, kind: str, seconds: float, number: int = -1) -> None:
        self.samples[kind, number].append(seconds)

    def read(self) -> None:
        """Collect events; call it where the device is known to be done."""
        for sample, begin, end in self._open:
            self.samples[sample].append(begin.elapsed_time(end) / 1000.0)
        self._open.clear()

    def clear(self) -> None:
        self.samples.clear()
        self._open.clear()

    def medians(self) -> dict[Sample, float]:
        return {sample: median(times) for sample, times in self.samples.items() if times}


def unit_costs(medians: dict[Sample, float], plan: Plan) -> dict[str, UnitCost]:
    """Costs of the units that were timed. A whole backward counts half for each of its parts."""
    costs: dict[str, UnitCost] = {}
    for number, unit in enumerate(plan.units):
        forward = medians.get(("forward", number))
        whole = medians.get(("backward", number))
        if forward is None:
            continue
        if whole is not None:
            costs[unit.name] = UnitCost(forward, whole / 2, whole / 2)
        else:
            weight = medians.get(("backward_weight", number), 0.0)
            costs[unit.name] = UnitCost(
                forward, medians.get(("backward_input", number), 0.0), weight
            )
    return costs


def make_profile(
    costs: dict[str, UnitCost], links: list[float], end_of_step: tuple[float, float]
) -> Profile:
    """A measured profile: unit costs, the latency of a message, (agree, optimizer) times."""
    latency = median(links) if links else 0.0
    link = Link(latency=latency)
    agree, optimizer = end_of_step
    return Profile(
        source="measured",
        unit=costs,
        within_node=link,
        between_nodes=link,
        agree=agree,
        optimizer=optimizer,
    )
