"""Small jobs of many shapes: replicas of unequal depth, stages cut differently, tied tensors,
spares, and a second plan to change to.
"""

from random import Random

import msgspec

from holdfast.plan.plan import Hop, Plan, Route, Stage, whole_route
from holdfast.plan.units import Split, TensorSpec, Unit
from holdfast.plan.workers import worker_name
from holdfast.planner.strategies.redundant import with_copies

MAX_WORKERS = 8
DRAWN_DEGREES = (1, 1, 2, 3)
"""Of tensor or shard groups, in plans that are drawn during a run."""


class JobShape(msgspec.Struct, frozen=True):
    plan: Plan
    other: Plan
    """The same workers and model, arranged differently."""
    places: dict[str, tuple[str, ...]]
    """Per node, the workers that can be started there."""


class _Cut(msgspec.Struct, frozen=True):
    """One stage: its units, and how its workers share them."""

    first: int
    stop: int
    tensor: int = 1
    shard: int = 1

    @property
    def size(self) -> int:
        return self.tensor * self.shard

    def axes(self) -> tuple[tuple[str, int], ...]:
        degrees = (("shard", self.shard), ("tensor", self.tensor))
        return tuple((axis, degree) for axis, degree in degrees if degree > 1)


StageCuts = list[_Cut]


def draw_shape(rng: Random) -> JobShape:
    units = _units(rng)
    num_micro_batches = rng.randint(2, 4)
    replicas = rng.choice((1, 2, 2, 2, 2, 2, 3, 3))
    layouts = [_replica(rng, len(units)) for _ in range(replicas)]
    if rng.random() < 0.5:
        layouts = [layouts[0]] * replicas
    while sum(cut.size for layout in layouts for cut in layout) > MAX_WORKERS:
        layouts.pop() if len(layouts) > 2 else layouts.__setitem__(-1, [_Cut(0, len(units))])
    total = sum(cut.size for layout in layouts for cut in layout)
    per_node = rng.choice((1, 2, 2, 3))
    num_spares = rng.choice((0, 0, 1, 2))
    grid = [worker_name(i // per_node, i % per_node) for i in range(total + num_spares)]
    plan = _arrange(units, layouts, grid[:total], num_micro_batches)
    other = _arrange(units, _rearranged(rng, layouts), grid[:total], num_micro_batches)
    places: dict[str, list[str]] = {}
    for name in grid:
        places.setdefault(name.partition(".")[0], []).append(name)
    return JobShape(plan, other, {node: tuple(names) for node, names in places.items()})


def draw_layout(rng: Random, like: Plan, workers: list[str]) -> Plan:
    """Any plan for the same model and step on some of these workers: also stages that are cut
    differently in one replica, routes that change replicas, unequal shares, and stages held twice.
    """
    rng.shuffle(workers)
    layouts: list[StageCuts] = []
    used = 0
    while len(layouts) < like.num_micro_batches:
        layout = _replica(rng, len(like.units), DRAWN_DEGREES)
        if rng.random() < 0.3:
            layout = [_degrees(rng, cut) for cut in layout]
        size = sum(cut.size for cut in layout)
        if used + size > len(workers) or (layouts and rng.random() < 0.2):
            break
        layouts.append(layout)
        used += size
    layouts = layouts or [[_Cut(0, len(like.units))]]
    plan = _arrange(like.units, layouts, workers, like.num_micro_batches)
    if rng.random() < 0.5:
        routes = [_route(rng, plan) for _ in plan.routes]
        plan = msgspec.structs.replace(plan, routes=tuple(sorted(routes, key=_names)))
    return with_copies(plan) if rng.random() < 0.25 else plan


def _degrees(rng: Random, cut: _Cut) -> _Cut:
    """One stage of a group that has lost a member, say."""
    degree = rng.choice(DRAWN_DEGREES)
    shard = degree if cut.shard > 1 else 1
    return msgspec.structs.replace(cut, tensor=degree // shard, shard=shard)


def _route(rng: Random, plan: Plan) -> Route:
    """Through any stage that goes on where the one before ends, all it holds or the rest of it."""
    hops: list[Hop] = []
    while not hops or hops[-1].stop < len(plan.units):
        at = hops[-1].stop if hops else 0
        stage = rng.choice([stage for stage in plan.stages if stage.first <= at < stage.stop])
        hops.append(Hop(stage.name, at, stage.stop))
    return tuple(hops)


def _names(route: Route) -> tuple[str, ...]:
    return tuple(hop.stage for hop in route)


def _units(rng: Random) -> tuple[Unit, ...]:
    """The embedding is tied to the head in half of the jobs; a norm is never cut."""
    count = rng.randint(2, 4)
    tied = TensorSpec("embed", (4,), Split(0, 4))
    units: list[Unit] = []
    for number in range(count):
        name = f"block.{number}"
        tensors = [TensorSpec(f"{name}.w", (4,), Split(0, 4))]
        if rng.random() < 0.5:
            tensors.append(TensorSpec(f"{name}.norm", (1,)))
        units.append(Unit(name, tuple(tensors)))
    if rng.random() < 0.5:
        for number in (0, count - 1):
            unit = units[number]
            units[number] = msgspec.structs.replace(unit, tensors=(*unit.tensors, tied))
    return tuple(units)


def _replica(rng: Random, num_units: int, degrees: tuple[int, ...] = (1, 1, 1, 2)) -> StageCuts:
    depth = rng.randint(1, min(3, num_units))
    cuts = sorted(rng.sample(range(1, num_units), depth - 1))
    bounds = [0, *cuts, num_units]
    degree = rng.choice(degrees)
    tensor, shard = (1, degree) if degree > 1 and rng.random() < 0.4 else (degree, 1)
    return [_Cut(bounds[i], bounds[i + 1], tensor, shard) for i in range(depth)]


def _rearranged(rng: Random, layouts: list[StageCuts]) -> list[StageCuts]:
    """The same number of workers per replica, other cuts between its stages."""
    changed: list[StageCuts] = []
    for layout in layouts:
        stop = layout[-1].stop
        if rng.random() < 0.3 and len(layout) > 1:
            size = sum(cut.size for cut in layout)
            degrees = {"shard": size} if layout[0].shard > 1 else {"tensor": size}
            changed.append([_Cut(0, stop, **degrees)] if size <= 4 else list(layout))
            continue
        cuts = sorted(rng.sample(range(1, stop), len(layout) - 1))
        bounds = [0, *cuts, stop]
        changed.append(
            [
                msgspec.structs.replace(cut, first=bounds[i], stop=bounds[i + 1])
                for i, cut in enumerate(layout)
            ]
        )
    return changed


def _arrange(
    units: tuple[Unit, ...], layouts: list[StageCuts], workers: list[str], num_micro_batches: int
) -> Plan:
    stages: list[Stage] = []
    chains: list[Route] = []
    at = 0
    for replica, layout in enumerate(layouts):
        built: list[Stage] = []
        for index, cut in enumerate(layout):
            names = tuple(workers[at : at + cut.size])
            built.append(Stage(replica, index, cut.first, cut.stop, names, cut.axes()))
            at += cut.size
        stages += built
        chains.append(whole_route(tuple(built)))
    routes = tuple(chains[number % len(chains)] for number in range(num_micro_batches))
    return Plan(units, tuple(stages), tuple(sorted(routes, key=lambda r: r[0].stage)))
