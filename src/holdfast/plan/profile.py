"""Costs as data: how long things take, measured or assumed.

A profile overrides the costs a plan's units carry. Times are in any one unit; `source` says
where they come from, so that a decision made on assumed figures can be recognised as such.
"""

from collections.abc import Callable

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.groups import transfers
from holdfast.plan.lanes import ComputeOp, LaneLayout
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.units import Unit
from holdfast.plan.workers import node_of


class UnitCost(msgspec.Struct, frozen=True):
    """Times of one micro-batch."""

    forward: float
    backward_input: float
    backward_weight: float

    def scaled(self, factor: float) -> "UnitCost":
        return UnitCost(
            self.forward * factor, self.backward_input * factor, self.backward_weight * factor
        )


class Link(msgspec.Struct, frozen=True):
    """latency + bytes / bandwidth; bandwidth 0 = infinite."""

    latency: float = 0.0
    bandwidth: float = 0.0

    def occupancy(self, num_bytes: float) -> float:
        return num_bytes / self.bandwidth if self.bandwidth else 0.0


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    source: str = "assumed"
    unit: dict[str, UnitCost] = {}
    """By unit name; units not named keep the cost they carry in the plan."""
    worker: UnitCost | None = None
    """If given: what one micro-batch costs a worker over all its stages, whatever its units."""
    tensor: dict[int, float] = {}
    """Time at a tensor degree, relative to the unit costs. Missing: they hold for degree 1 and are
    shared evenly.
    """
    within_node: Link = Link()
    between_nodes: Link = Link()
    links: dict[str, Link] = {}
    """Exceptions, `n0>n1` or `n0.g1>n1.g0`."""
    slow: dict[str, float] = {}
    """Worker, node or role (`n0.g1`, `n0`, `r0.s1`) -> how many times longer its computations
    take.
    """
    workload: tuple[float, ...] = ()
    """Per micro-batch, relative to an ordinary one. Empty: all ordinary."""
    reduce: Link = Link()
    """Of the ring that reduces one unit's gradients over its holders."""
    action: float = 0.0
    """What every computation costs besides its units: messages, bookkeeping."""
    agree: float = 0.0
    optimizer: float = 0.0
    update: float = 0.0
    """Of the optimizer, per parameter a worker holds; `optimizer` comes on top."""


def parse_profile(text: str) -> Profile:
    """A profile from JSON."""
    try:
        return msgspec.json.decode(text, type=Profile)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"not a profile: {error}") from None


def format_profile(profile: Profile) -> str:
    return msgspec.json.format(msgspec.json.encode(profile), indent=2).decode() + "\n"


class LayoutCosts(msgspec.Struct, frozen=True):
    """A profile applied to one layout: times by stage number, links by pair of lanes."""

    stage: tuple[UnitCost, ...]
    """Slow-downs and tensor degree included."""
    part: dict[tuple[int, int], UnitCost]
    """(stage, micro-batch) -> cost, where a route uses only a part of a stage."""
    workload: tuple[float, ...]
    profile: Profile

    def duration(self, op: ComputeOp) -> float:
        kind, stage, micro_batch = op
        cost = (
            self.part.get((stage, micro_batch), self.stage[stage])
            if self.part
            else self.stage[stage]
        )
        if kind == "F":
            time = cost.forward
        elif kind == "B":
            time = cost.backward_input + cost.backward_weight
        elif kind == "I":
            time = cost.backward_input
        else:
            time = cost.backward_weight
        if self.workload:
            time *= self.workload[micro_batch]
        return time + self.profile.action


def resolve(layout: LaneLayout, profile: Profile) -> LayoutCosts:
    plan = layout.plan
    if profile.workload and len(profile.workload) != plan.num_micro_batches:
        raise HoldfastError(
            f"the profile has workloads of {len(profile.workload)} micro-batches, "
            f"the plan {plan.num_micro_batches}"
        )
    slow = slow_workers(plan, profile)

    def price(number: int, first: int, stop: int) -> UnitCost:
        """Units `first` .. `stop - 1` of a stage, at the pace of its slowest worker."""
        stage, lanes = plan.stages[number], layout.stage_lanes[number]
        num_shared = max((len(layout.lane_stages[lane]) for lane in lanes), default=1)
        factor = max((slow.get(worker, 1.0) for worker in stage.workers), default=1.0)
        return _stage_cost(plan, stage, first, stop, profile, num_shared).scaled(factor)

    stages = tuple(price(n, stage.first, stage.stop) for n, stage in enumerate(plan.stages))
    return LayoutCosts(stages, _partial_costs(layout, price), profile.workload, profile)


def slow_workers(plan: Plan, profile: Profile) -> dict[str, float]:
    """Slow-down by worker name; where patterns overlap, the larger counts."""
    slow: dict[str, float] = {}
    for pattern, factor in profile.slow.items():
        if factor <= 0:
            raise HoldfastError(f"slow {pattern}={factor}: the factor must be above 0")
        for worker in plan.select(pattern):
            slow[worker] = max(factor, slow.get(worker, 0.0))
    return slow


def unit_cost(unit: Unit, profile: Profile) -> UnitCost:
    own = UnitCost(unit.forward, unit.backward_input, unit.backward_weight)
    return profile.unit.get(unit.name, own)


def _stage_cost(
    plan: Plan, stage: Stage, first: int, stop: int, profile: Profile, num_shared: int
) -> UnitCost:
    if profile.worker is not None:
        share = (stop - first) / max(1, stage.stop - stage.first) / num_shared
        cost = profile.worker.scaled(share)
    else:
        costs = [unit_cost(unit, profile) for unit in plan.units[first:stop]]
        cost = UnitCost(
            sum(cost.forward for cost in costs),
            sum(cost.backward_input for cost in costs),
            sum(cost.backward_weight for cost in costs),
        )
        cost = cost.scaled(profile.tensor.get(stage.tensor, 1.0 / stage.tensor))
    if plan.schedule.recompute:
        # Activations are computed again before the backward pass; a split one waits for that
        # first.
        cost = UnitCost(cost.forward, cost.backward_input + cost.forward, cost.backward_weight)
    return cost


def _partial_costs(
    layout: LaneLayout, price: Callable[[int, int, int], UnitCost]
) -> dict[tuple[int, int], UnitCost]:
    plan, previous = layout.plan, None
    part: dict[tuple[int, int], UnitCost] = {}
    partial: list[tuple[int, UnitCost]] = []
    for micro_batch, route in enumerate(plan.routes):
        if route is not previous:
            partial = []
            for hop, number in zip(route, layout.routes[micro_batch], strict=True):
                stage = plan.stages[number]
                if (hop.first, hop.stop) != (stage.first, stage.stop):
                    partial.append((number, price(number, hop.first, hop.stop)))
        for number, cost in partial:
            part[number, micro_batch] = cost
        previous = route
    return part


def link_between(profile: Profile, source: str, target: str) -> Link:
    """The link from worker to worker."""
    if not profile.links:
        return profile.within_node if node_of(source) == node_of(target) else profile.between_nodes
    nodes = f"{node_of(source)}>{node_of(target)}"
    exact = profile.links.get(f"{source}>{target}", profile.links.get(nodes))
    if exact is not None:
        return exact
    return profile.within_node if node_of(source) == node_of(target) else profile.between_nodes


def message_link(profile: Profile, source: Stage, target: Stage) -> Link:
    """What a boundary tensor meets on its way from stage to stage: the slowest pair of workers.

    A worker that sends to several shares its bandwidth between them. Nothing is sent where both
    ends are the same worker.
    """
    pairs = [(a, b) for a, b in transfers(source, target) if a != b]
    links = [(sender, link_between(profile, sender, receiver)) for sender, receiver in pairs]
    num_sends: dict[str, int] = {}
    for sender, _ in pairs:
        num_sends[sender] = num_sends.get(sender, 0) + 1
    rates = [link.bandwidth / num_sends[sender] for sender, link in links if link.bandwidth]
    latency = max([link.latency for _, link in links], default=0.0)
    return Link(latency, min(rates, default=0.0))
