"""Failures from rates: one seeded source of chance, drawn before any policy runs.

Gaps are exponential or fixed. Which device is hit is drawn evenly; one failure in a hundred takes
a whole group of neighbouring nodes (a switch). Slow-downs last 72 minutes on average, log-normal,
and take 35, 55 or 70 % of the speed (Greyhound's and ResiHP's figures).
"""

import math
import random
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.sim.cluster.events import LLAMA3, SLOW, Cause, HardwareEvent
from holdfast.sim.cluster.job import SimulatedJob

SLOW_FACTORS = (1 / 0.65, 1 / 0.45, 1 / 0.30)
SLOW_MEAN_MS = 72 * 60_000
SLOW_SIGMA = 1.0
GROUP_NODES = 8


class HazardRates(msgspec.Struct, frozen=True, kw_only=True):
    """How often things happen to the whole job."""

    mtbf_ms: int
    """Mean time between failures."""
    fixed_gaps: bool = False
    """Every gap is the mean, instead of exponential."""
    slow_ms: int = 0
    """Mean time between slow-downs; 0: none."""
    repair_ms: int = 4 * 3_600_000
    """Mean time to repair a node (exponential). Assumed: no source gives it."""
    correlated: float = 0.01
    """Share of failures that take a group of nodes."""
    causes: tuple[Cause, ...] = LLAMA3


def draw_events(
    job: SimulatedJob, rates: HazardRates, length_ms: int, seed: int
) -> tuple[HardwareEvent, ...]:
    """Everything that happens in the given time, in order."""
    chance = random.Random(seed)
    failed = [_failure(chance, job, rates, at) for at in _times(chance, rates, length_ms)]
    slowed: list[HardwareEvent] = []
    if rates.slow_ms:
        slow_rates = msgspec.structs.replace(rates, mtbf_ms=rates.slow_ms, fixed_gaps=False)
        slowed = [_slow_down(chance, job, at) for at in _times(chance, slow_rates, length_ms)]
    return tuple(sorted(failed + slowed, key=lambda event: (event.time_ms, event.devices)))


def _times(chance: random.Random, rates: HazardRates, length_ms: int) -> Iterator[int]:
    time_ms = 0
    while True:
        gap = rates.mtbf_ms if rates.fixed_gaps else chance.expovariate(1 / rates.mtbf_ms)
        time_ms += max(1, round(gap))
        if time_ms >= length_ms:
            return
        yield time_ms


def _failure(
    chance: random.Random, job: SimulatedJob, rates: HazardRates, time_ms: int
) -> HardwareEvent:
    cause = chance.choices(rates.causes, [cause.count for cause in rates.causes])[0]
    device = chance.randrange(job.devices)
    devices: Sequence[int] = (device,)
    node = job.node_of(device)
    if chance.random() < rates.correlated:
        nodes = range(node, min(node + GROUP_NODES, job.nodes))
        devices = [device for each in nodes for device in job.node_devices(each)]
    elif cause.scope == "node":
        devices = job.node_devices(node)
    repair_ms = max(1, round(chance.expovariate(1 / rates.repair_ms)))
    return HardwareEvent(
        time_ms=time_ms,
        kind="failed",
        devices=tuple(devices),
        cause=cause,
        last_ms=repair_ms if cause.repair else 0,
    )


def _slow_down(chance: random.Random, job: SimulatedJob, time_ms: int) -> HardwareEvent:
    mu = math.log(SLOW_MEAN_MS) - SLOW_SIGMA**2 / 2
    return HardwareEvent(
        time_ms=time_ms,
        kind="slowed",
        devices=(chance.randrange(job.devices),),
        cause=SLOW,
        last_ms=max(1, round(math.exp(chance.gauss(mu, SLOW_SIGMA)))),
        factor=chance.choice(SLOW_FACTORS),
    )


def kill_events(job: SimulatedJob, gap_ms: int, count: int, seed: int) -> tuple[HardwareEvent, ...]:
    """One device after the other is killed for good at fixed gaps, the first at the start.

    As long as there is a choice no kill takes the last whole seat of a stage: the published runs
    that policies without tensor shrinking survive must have been like that.
    """
    chance = random.Random(seed)
    order = list(range(job.devices))
    chance.shuffle(order)
    hit: dict[int, set[int]] = {}
    order.sort(key=lambda device: _is_last(job, hit, device))
    return tuple(
        HardwareEvent(time_ms=1 + gap_ms * i, kind="failed", devices=(device,))
        for i, device in enumerate(order[:count])
    )


def _is_last(job: SimulatedJob, hit: dict[int, set[int]], device: int) -> bool:
    """Would this kill leave no whole seat of its stage? Remembers it if not."""
    pipeline, stage = job.seat(device)
    known = hit.setdefault(stage, set())
    if pipeline not in known and len(known) + 1 >= job.pipelines:
        return True
    known.add(pipeline)
    return False
