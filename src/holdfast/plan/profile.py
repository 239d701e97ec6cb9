"""Costs as data: how long things take, measured or assumed.

A profile overrides the costs a plan's units carry. Times are in any one unit; `source` says
where they come from, so that a decision made on assumed figures can be recognised as such.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.groups import row_transfers, transfers
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
    """Time at a tensor degree, relative to the unit costs; see `tensor_factor`. Empty: the costs
    hold for degree 1.
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

    def ring_link(self, members: Sequence[str]) -> Link:
        """What a ring through these workers meets, in this order: `reduce`, or the slowest of the
        links on its way that are named in `links`.
        """
        if not self.links:
            return self.reduce
        around = zip(members, [*members[1:], *members[:1]], strict=True)
        found = [self.reduce, *(link for a, b in around if (link := self.exception(a, b)))]
        rates = [link.bandwidth for link in found if link.bandwidth]
        return Link(max(link.latency for link in found), min(rates, default=0.0))

    def exception(self, source: str, target: str) -> Link | None:
        """What `links` says of the way from worker to worker."""
        nodes = f"{node_of(source)}>{node_of(target)}"
        return self.links.get(f"{source}>{target}", self.links.get(nodes))


def parse_profile(text: str) -> Profile:
    """A profile from JSON."""
    try:
        return msgspec.json.decode(text, type=Profile)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"not a profile: {error}") from None


def format_profile(profile: Profile) -> str:
    return msgspec.json.format(msgspec.json.encode(profile), indent=2).decode() + "\n"


_Price = Callable[[int, int, int, Sequence[str]], UnitCost]
"""Of units of a stage on some of its workers: stage number, first unit, stop, workers."""


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

    def price(number: int, first: int, stop: int, workers: Sequence[str]) -> UnitCost:
        """Units `first` .. `stop - 1` of a stage, at the pace of the slowest of these workers."""
        stage, lanes = plan.stages[number], layout.stage_lanes[number]
        num_shared = max((len(layout.lane_stages[lane]) for lane in lanes), default=1)
        factor = max((slow.get(worker, 1.0) for worker in workers), default=1.0)
        return _stage_cost(plan, stage, first, stop, profile, num_shared).scaled(factor)

    stages = tuple(
        price(n, stage.first, stage.stop, stage.workers) for n, stage in enumerate(plan.stages)
    )
    part = _partial_costs(layout, price)
    if slow and plan.shard_ranks:
        part |= _row_costs(layout, price)
    return LayoutCosts(stages, part, profile.workload, profile)


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


def tensor_factor(profile: Profile, degree: int) -> float:
    """Time at a tensor degree, relative to the unit costs. A degree that was not measured follows
    from the nearest one that was, as if its work were shared evenly.
    """
    known = profile.tensor
    if not known:
        return 1.0 / degree
    near = min(known, key=lambda other: (abs(other - degree), other))
    return known[near] * near / degree


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
        cost = cost.scaled(tensor_factor(profile, stage.tensor))
    if plan.schedule.recompute:
        # Activations are computed again before the backward pass; a split one waits for that
        # first.
        cost = UnitCost(cost.forward, cost.backward_input + cost.forward, cost.backward_weight)
    return cost


def _partial_costs(layout: LaneLayout, price: _Price) -> dict[tuple[int, int], UnitCost]:
    plan, previous = layout.plan, None
    part: dict[tuple[int, int], UnitCost] = {}
    partial: list[tuple[int, UnitCost]] = []
    for micro_batch, route in enumerate(plan.routes):
        if route is not previous:
            partial = []
            for hop, number in zip(route, layout.routes[micro_batch], strict=True):
                stage = plan.stages[number]
                if (hop.first, hop.stop) != (stage.first, stage.stop):
                    partial.append((number, price(number, hop.first, hop.stop, stage.workers)))
        for number, cost in partial:
            part[number, micro_batch] = cost
        previous = route
    return part


def _row_costs(layout: LaneLayout, price: _Price) -> dict[tuple[int, int], UnitCost]:
    """On stages with a shard axis, every micro-batch at the pace of the workers that compute it."""
    plan, found = layout.plan, dict[tuple[int, int], UnitCost]()
    for micro_batch, route in enumerate(plan.routes):
        for hop, number in zip(route, layout.routes[micro_batch], strict=True):
            stage = plan.stages[number]
            if stage.shard > 1:
                workers = plan.computing(stage, micro_batch)
                found[number, micro_batch] = price(number, hop.first, hop.stop, workers)
    return found


def link_between(profile: Profile, source: str, target: str) -> Link:
    """The link from worker to worker."""
    if profile.links and (exact := profile.exception(source, target)) is not None:
        return exact
    return profile.within_node if node_of(source) == node_of(target) else profile.between_nodes


def message_link(profile: Profile, source: Stage, target: Stage) -> Link:
    """What a boundary tensor meets on its way from stage to stage: the slowest pair of workers.

    A worker that sends to several shares its bandwidth between them. Nothing is sent where both
    ends are the same worker.
    """
    rows = row_transfers(source, target)
    return _slowest(link for pairs in rows for link in _shared_links(profile, pairs))


def row_link(profile: Profile, source: Sequence[str], target: Sequence[str]) -> Link:
    """The same between the workers that compute one micro-batch on two stages."""
    return _slowest(_shared_links(profile, transfers(source, target)))


def _slowest(links: Iterable[Link]) -> Link:
    found = list(links)
    rates = [link.bandwidth for link in found if link.bandwidth]
    return Link(max((link.latency for link in found), default=0.0), min(rates, default=0.0))


def _shared_links(profile: Profile, pairs: Sequence[tuple[str, str]]) -> Iterator[Link]:
    """What each of these messages, sent at once, gets of its link."""
    num_sends = Counter(sender for sender, receiver in pairs if sender != receiver)
    for sender, receiver in pairs:
        if sender != receiver:
            link = link_between(profile, sender, receiver)
            yield Link(link.latency, link.bandwidth / num_sends[sender])
