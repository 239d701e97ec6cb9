"""Random plans for property tests: regular and irregular, always valid, and ways to break them."""

from hypothesis import strategies as st

from holdfast.plan.build import deal_routes, regular_plan
from holdfast.plan.plan import Hop, Plan, Route, Schedule, Stage, whole_route
from holdfast.plan.units import Split, TensorSpec, Unit
from holdfast.plan.workers import worker_grid


def make_units(count: int, *, heads: int = 6, tied: bool = False) -> tuple[Unit, ...]:
    """Small blocks with a split, a following, an unsplit and a column-split tensor each."""
    units: list[Unit] = []
    for number in range(count):
        name = f"block.{number}"
        tensors = [
            TensorSpec(f"{name}.wq", (2 * heads, 3), Split(0, heads)),
            TensorSpec(f"{name}.wk", (heads, 3), Split(0, heads // 2, heads)),
            TensorSpec(f"{name}.norm", (5,)),
            TensorSpec(f"{name}.wo", (3, 2 * heads), Split(1, heads)),
        ]
        if tied and number in (0, count - 1):
            tensors.append(TensorSpec("embed.weight", (12, 3), Split(0, 12)))
        units.append(Unit(name, tuple(tensors), 1.0, 1.0, 1.0, 64, 16))
    return tuple(units)


@st.composite
def unit_lists(draw: st.DrawFn, least: int = 1) -> tuple[Unit, ...]:
    count = draw(st.integers(least, 8))
    units = make_units(count, tied=draw(st.booleans()))
    costs = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=count, max_size=count))
    return tuple(
        Unit(u.name, u.tensors, cost, cost, 2 * cost, 64, 16)
        for u, cost in zip(units, costs, strict=True)
    )


@st.composite
def regular_plans(draw: st.DrawFn, units: tuple[Unit, ...] = ()) -> Plan:
    """Of a random model, or of the given one."""
    stages, virtual = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    if units and stages * virtual > len(units):
        stages = virtual = 1
    units = units or draw(unit_lists(least=stages * virtual))
    replicas = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]))
    least = stages if kind in ("interleaved", "zero-bubble") else 1
    per_replica = draw(st.integers(least, 6))
    return regular_plan(
        units,
        replicas=replicas,
        stages=stages,
        virtual=virtual,
        tensor=draw(st.integers(1, 3)),
        shard=draw(st.integers(1, 2)),
        micro_batches=replicas * per_replica,
        schedule=Schedule(
            kind=kind,
            recompute=draw(st.booleans()),
            reshard=draw(st.sampled_from(("after_forward", "after_backward"))),
        ),
        split=draw(st.sampled_from(["even", "cost"])),
        devices_per_node=draw(st.sampled_from([1, 2, 8])),
    )


@st.composite
def irregular_plans(draw: st.DrawFn, units: tuple[Unit, ...] = ()) -> Plan:
    """Replicas of their own depth, split and tensor degrees; routes that cross between them."""
    units = units or draw(unit_lists(least=2))
    replicas = draw(st.integers(1, 3))
    stages: list[Stage] = []
    names = list(worker_grid(64, draw(st.sampled_from([2, 8]))))
    for replica in range(replicas):
        cuts = draw(st.sets(st.integers(1, len(units) - 1), max_size=3))
        bounds = [0, *sorted(cuts), len(units)]
        for index in range(len(bounds) - 1):
            tensor = draw(st.integers(1, 3))
            axes = (("tensor", tensor),) if tensor > 1 else ()
            workers = tuple(names.pop(0) for _ in range(tensor))
            stages.append(Stage(replica, index, bounds[index], bounds[index + 1], workers, axes))
    chains = [
        whole_route(tuple(stage for stage in stages if stage.replica == replica))
        for replica in range(replicas)
    ]
    counts = draw(st.lists(st.integers(1, 4), min_size=replicas, max_size=replicas))
    routes = list(deal_routes(chains, sum(counts), counts))
    for number in range(len(routes)):
        if draw(st.integers(0, 3)) == 0:
            routes[number] = draw(crossing_routes(tuple(stages), len(units)))
    kind = draw(st.sampled_from(["gpipe", "1f1b"]))
    extra = draw(st.integers(0, 2))
    return Plan(units, tuple(stages), tuple(routes), Schedule(kind, extra_in_flight=extra))


@st.composite
def crossing_routes(draw: st.DrawFn, stages: tuple[Stage, ...], num_units: int) -> Route:
    """At every point any stage that holds the next unit may go on, as far as it likes."""
    hops: list[Hop] = []
    at = 0
    while at < num_units:
        used = {hop.stage for hop in hops}
        able = [s for s in stages if s.first <= at < s.stop and s.name not in used]
        if not able:  # every stage that holds the unit was left too early
            return draw(crossing_whole(stages, num_units))
        stage = draw(st.sampled_from(able))
        stop = draw(st.integers(at + 1, stage.stop))
        hops.append(Hop(stage.name, at, stop))
        at = stop
    return tuple(hops)


@st.composite
def crossing_whole(draw: st.DrawFn, stages: tuple[Stage, ...], num_units: int) -> Route:
    hops: list[Hop] = []
    at = 0
    while at < num_units:
        stage = draw(st.sampled_from([s for s in stages if s.first <= at < s.stop]))
        hops.append(Hop(stage.name, at, stage.stop))
        at = stage.stop
    return tuple(hops)


plans = st.one_of(regular_plans(), irregular_plans())
