"""A second, obvious timeline: no worker starts before all they wait for has ended, until it is so.

Every start is 0 at first. In each round every computation is put behind the one before it on each
of its lanes and behind the message it needs, as things stand; when a round changes nothing, that
is the timeline. It shares no code with `holdfast.plan.timeline`, and is far too slow for use.
"""

from collections.abc import Sequence
from itertools import pairwise

from holdfast.plan.lanes import ComputeOp, LaneLayout, LaneOrder
from holdfast.plan.plan import Hop
from holdfast.plan.profile import Link, Profile
from holdfast.plan.workers import node_of


def slow_times(
    layout: LaneLayout, orders: Sequence[LaneOrder], profile: Profile
) -> dict[ComputeOp, tuple[float, float]]:
    """(start, end) of every computation."""
    length = {op: duration(layout, profile, op) for order in orders for op in order}
    start = dict.fromkeys(length, 0.0)
    for _ in range(len(length) + 2):
        end = {op: start[op] + length[op] for op in length}
        arrival = arrivals(layout, orders, profile, end)
        moved = {
            op: arrival[needed] if (needed := needs(layout, op, length)) else 0.0 for op in length
        }
        for order in orders:
            for before, op in pairwise(order):
                moved[op] = max(moved[op], end[before])
        if moved == start:
            return {op: (start[op], end[op]) for op in length}
        start = moved
    raise AssertionError("the starts never settle: the orders wait for each other")


def needs(layout: LaneLayout, op: ComputeOp, known: dict[ComputeOp, float]) -> ComputeOp | None:
    """The computation on a neighbouring stage whose result this one takes in."""
    kind, stage, number = op
    route = layout.routes[number]
    at = route.index(stage)
    if kind == "F":
        return ("F", route[at - 1], number) if at > 0 else None
    if kind == "W" or at + 1 == len(route):
        return None
    whole = ("B", route[at + 1], number)
    return whole if whole in known else ("I", route[at + 1], number)


def arrivals(
    layout: LaneLayout, orders: Sequence[LaneOrder], profile: Profile, end: dict[ComputeOp, float]
) -> dict[ComputeOp, float]:
    """When each result is where it is needed; messages between two stages go one by one."""
    free: dict[tuple[object, ...], float] = {}
    arrival = dict(end)
    for lane, order in enumerate(orders):
        for op in order:
            target = receiver(layout, op)
            here = computing_workers(layout, op[1], op[2])
            if target is None or min(layout.lane_of_worker[worker] for worker in here) != lane:
                continue
            sending, latency = message(layout, profile, op, target)
            channel = (op[1], target, here, computing_workers(layout, target, op[2]))
            free[channel] = max(end[op], free.get(channel, 0.0)) + sending
            arrival[op] = free[channel] + latency
    return arrival


def computing_workers(layout: LaneLayout, number: int, micro_batch: int) -> tuple[str, ...]:
    """The workers of a stage that compute a micro-batch: shard ranks take turns."""
    stage = layout.plan.stages[number]
    place = sum(number in route for route in layout.routes[:micro_batch])
    width = len(stage.workers) // stage.shard
    first = place % stage.shard * width
    return stage.workers[first : first + width]


def receiver(layout: LaneLayout, op: ComputeOp) -> int | None:
    kind, stage, number = op
    route = layout.routes[number]
    at = route.index(stage) + (1 if kind == "F" else -1)
    return route[at] if kind != "W" and 0 <= at < len(route) else None


def message(
    layout: LaneLayout, profile: Profile, op: ComputeOp, target: int
) -> tuple[float, float]:
    """How long the slowest sender is at it, and the longest latency."""
    plan = layout.plan
    a, b = computing_workers(layout, op[1], op[2]), computing_workers(layout, target, op[2])
    pairs = [(a[j * len(a) // len(b)], b[j]) for j in range(len(b))]
    pairs = [(source, receiver) for source, receiver in pairs if source != receiver]
    later = max(hop_of(layout, stage, op[2]).first for stage in (op[1], target))
    size = plan.units[later - 1].boundary_bytes
    sending = latency = 0.0
    for source, receiver in pairs:
        used = link(profile, source, receiver)
        num_sends = sum(other == source for other, _ in pairs)
        sending = max(sending, num_sends * size / used.bandwidth if used.bandwidth else 0.0)
        latency = max(latency, used.latency)
    return sending, latency


def link(profile: Profile, source: str, target: str) -> Link:
    a, b = node_of(source), node_of(target)
    usual = profile.within_node if a == b else profile.between_nodes
    return profile.links.get(f"{source}>{target}") or profile.links.get(f"{a}>{b}") or usual


def hop_of(layout: LaneLayout, stage: int, number: int) -> Hop:
    name = layout.plan.stages[stage].name
    return next(hop for hop in layout.plan.routes[number] if hop.stage == name)


def duration(layout: LaneLayout, profile: Profile, op: ComputeOp) -> float:
    """Unit by unit, at the pace of the slowest worker."""
    kind, number, micro_batch = op
    plan = layout.plan
    hop = hop_of(layout, number, micro_batch)
    forward = backward_input = backward_weight = 0.0
    for unit in plan.units[hop.first : hop.stop]:
        cost = profile.unit.get(unit.name, unit)
        forward += cost.forward
        backward_input += cost.backward_input
        backward_weight += cost.backward_weight
    if plan.schedule.recompute:
        backward_input += forward
    time = {
        "F": forward,
        "B": backward_input + backward_weight,
        "I": backward_input,
        "W": backward_weight,
    }[kind]
    computing = computing_workers(layout, number, micro_batch)
    degree = len(computing)
    nearest = sorted(profile.tensor, key=lambda known: (abs(known - degree), known))[:1]
    time *= profile.tensor[nearest[0]] * nearest[0] / degree if nearest else 1 / degree
    time *= max(slowness(layout, profile, worker) for worker in computing)
    return time * (profile.workload[micro_batch] if profile.workload else 1.0)


def slowness(layout: LaneLayout, profile: Profile, worker: str) -> float:
    factors = [f for pattern, f in profile.slow.items() if worker in layout.plan.select(pattern)]
    return max(factors, default=1.0)
