"""What follows the computations of a step: reduce every unit over its holders, agree, apply.

A unit's bucket is ready on a lane when the last backward of a stage holding it has passed that
unit. Buckets are reduced one after the other per lane, beside the computations that still run;
all agree when all are reduced.
"""

from collections.abc import Sequence

import msgspec

from holdfast.plan.holders import HolderMap
from holdfast.plan.lanes import ComputeOp, LaneLayout
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.profile import LayoutCosts, Link, Profile, unit_cost


class UnitReduction(msgspec.Struct, frozen=True):
    unit: int
    lanes: tuple[int, ...]
    start: float
    end: float


class StepEpilogue(msgspec.Struct, frozen=True):
    reductions: tuple[UnitReduction, ...]
    computed: float
    """When the last computation ended."""
    end: float
    optimizer: float


def evaluate_epilogue(
    layout: LaneLayout,
    lanes: Sequence[Sequence[int]],
    ops: Sequence[ComputeOp],
    start: Sequence[float],
    end: Sequence[float],
    costs: LayoutCosts,
) -> StepEpilogue:
    profile = costs.profile
    computed = max(end, default=0.0)
    reductions: tuple[UnitReduction, ...] = ()
    if profile.reduce.latency or profile.reduce.bandwidth:
        reductions = _reduce(layout, _last_backwards(lanes, ops, start, end), costs)
    reduced = max((reduction.end for reduction in reductions), default=0.0)
    optimizer = optimizer_time(layout.plan, profile)
    finish = max(computed, reduced) + profile.agree + optimizer
    return StepEpilogue(reductions, computed, finish, optimizer)


def optimizer_time(plan: Plan, profile: Profile) -> float:
    """Of the worker that holds most."""
    if not profile.update:
        return profile.optimizer
    most = max(HolderMap(plan).num_parameters.values(), default=0)
    return profile.optimizer + profile.update * most


def _last_backwards(
    lanes: Sequence[Sequence[int]],
    ops: Sequence[ComputeOp],
    start: Sequence[float],
    end: Sequence[float],
) -> dict[int, tuple[float, float]]:
    """(start, end) of the last computation that adds to a stage's gradients."""
    last: dict[int, tuple[float, float]] = {}
    for order in lanes:
        for number in order:
            kind, stage, _ = ops[number]
            if kind in ("B", "W"):
                last[stage] = (start[number], end[number])
    return last


def _reduce(
    layout: LaneLayout, last: dict[int, tuple[float, float]], costs: LayoutCosts
) -> tuple[UnitReduction, ...]:
    plan, profile = layout.plan, costs.profile
    holder_map = HolderMap(plan)
    ready: list[tuple[float, int, tuple[int, ...], float]] = []
    for unit in range(len(plan.units)):
        holders = holder_map.bucket_stages[unit]
        if len(holders) < 2:
            continue
        time = max(_ready(layout, stage, unit, last, costs) for stage in holders)
        smallest = min(plan.stages[stage].tensor * plan.stages[stage].shard for stage in holders)
        elements = sum(tensor.num_elements for tensor in holder_map.buckets[unit])
        num_bytes = elements * plan.state_bytes.gradient / smallest
        link = rings_link(profile, [plan.stages[stage].workers for stage in holders])
        duration = ring(num_bytes, len(holders), link)
        lanes = tuple(sorted({lane for stage in holders for lane in layout.stage_lanes[stage]}))
        ready.append((time, -unit, lanes, duration))
    free = [0.0] * len(layout.lanes)
    reductions: list[UnitReduction] = []
    for time, negative, lanes, duration in sorted(ready):
        begin = max(time, *(free[lane] for lane in lanes))
        for lane in lanes:
            free[lane] = begin + duration
        reductions.append(UnitReduction(-negative, lanes, begin, begin + duration))
    return tuple(reductions)


def rings_link(profile: Profile, holders: Sequence[Sequence[str]]) -> Link:
    """The slowest of the rings through the workers of these stages, of which there is one per
    slice.
    """
    if not profile.links:
        return profile.reduce
    width = max(len(workers) for workers in holders)
    links = [
        profile.ring_link([workers[at * len(workers) // width] for workers in holders])
        for at in range(width)
    ]
    rates = [link.bandwidth for link in links if link.bandwidth]
    return Link(max(link.latency for link in links), min(rates, default=0.0))


def ring(num_bytes: float, num_members: int, link: Link) -> float:
    """Reduce and spread `num_bytes` over a ring."""
    share = (num_members - 1) / num_members
    return 2 * share * link.occupancy(num_bytes) + 2 * (num_members - 1) * link.latency


def _ready(
    layout: LaneLayout,
    number: int,
    unit: int,
    last: dict[int, tuple[float, float]],
    costs: LayoutCosts,
) -> float:
    """The backward pass runs from the last unit of a stage to the first: earlier units are ready
    later.
    """
    if number not in last:
        return 0.0
    start, end = last[number]
    stage: Stage = layout.plan.stages[number]
    weights = [
        cost.backward_input + cost.backward_weight
        for cost in (
            unit_cost(u, costs.profile) for u in layout.plan.units[stage.first : stage.stop]
        )
    ]
    total = sum(weights)
    if not stage.first <= unit < stage.stop:
        return end  # here for a tied tensor only
    before = sum(weights[: unit - stage.first]) / total if total else 0.0
    return end - (end - start) * before
