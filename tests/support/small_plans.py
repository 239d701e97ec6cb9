"""Plans that many tests share: chains, a lost worker, a V, workers with several stages."""

from collections.abc import Sequence

from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Hop, Plan, Route, Schedule, Stage, whole_route
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.units import Unit
from holdfast.plan.workers import node_of, worker_grid
from support.random_plans import crossing_whole

Triple = tuple[float, float, float]
"""Forward, backward for the input, backward for the weights."""


def blocks(count: int) -> tuple[Unit, ...]:
    return tuple(Unit(f"block.{number}") for number in range(count))


def per_stage(forward: float, backward_input: float, backward_weight: float) -> Profile:
    """Every unit of `blocks` costs this, so every stage of a plan with one unit per stage."""
    cost = UnitCost(forward, backward_input, backward_weight)
    return Profile(unit={f"block.{number}": cost for number in range(64)})


def even_chain(depth: int, num_micro_batches: int, kind: str = "1f1b", virtual: int = 1) -> Plan:
    """One replica, one unit per stage."""
    return regular_plan(
        blocks(depth * virtual),
        stages=depth,
        virtual=virtual,
        micro_batches=num_micro_batches,
        schedule=kind,
    )


def chain_of(costs: Sequence[Triple], num_micro_batches: int, kind: str = "1f1b") -> Plan:
    """One stage per cost, each on a node of its own."""
    units = [Unit(f"block.{n}", (), *cost, boundary_bytes=16) for n, cost in enumerate(costs)]
    return regular_plan(
        units,
        stages=len(units),
        micro_batches=num_micro_batches,
        schedule=kind,
        devices_per_node=1,
    )


def delays(values: Sequence[float]) -> dict[str, Link]:
    """Latencies between neighbouring nodes, the same both ways."""
    links: dict[str, Link] = {}
    for node, latency in enumerate(values):
        links[f"n{node}>n{node + 1}"] = links[f"n{node + 1}>n{node}"] = Link(latency=latency)
    return links


def v_shaped(depth: int, num_micro_batches: int, kind: str = "zero-bubble") -> Plan:
    """Worker i holds stages i and 2p - 1 - i."""
    num_stages = 2 * depth
    stages = tuple(
        Stage(0, number, number, number + 1, (f"n0.g{min(number, num_stages - 1 - number)}",))
        for number in range(num_stages)
    )
    routes = (whole_route(stages),) * num_micro_batches
    return Plan(blocks(num_stages), stages, routes, Schedule(kind))


def rerouted(depth: int, replicas: int, per_replica: int, schedule: Schedule) -> Plan:
    """A middle stage of replica 0 is lost; the same stage of the others serves it in turn."""
    plan = regular_plan(
        blocks(depth), replicas=replicas, stages=depth, micro_batches=replicas * per_replica
    )
    lost = f"r0.s{depth // 2}"
    routes: list[Route] = []
    for number, route in enumerate(plan.routes):
        heir = f"r{1 + number % (replicas - 1)}.s{depth // 2}"
        routes.append(tuple(Hop(heir, h.first, h.stop) if h.stage == lost else h for h in route))
    stages = tuple(stage for stage in plan.stages if stage.name != lost)
    return Plan(plan.units, stages, tuple(routes), schedule)


@st.composite
def shared_plans(draw: st.DrawFn) -> Plan:
    """Stages over any workers: some sit in several stages, so that a stage spans several lanes."""
    count = draw(st.integers(2, 5))
    units = tuple(Unit(f"block.{n}", (), 1.0, 1.0, 2.0, 64, 16) for n in range(count))
    replicas = draw(st.integers(1, 3))
    names = worker_grid(draw(st.integers(2, 6)), 2)
    stages: list[Stage] = []
    for replica in range(replicas):
        bounds = [0, *sorted(draw(st.sets(st.integers(1, count - 1), max_size=2))), count]
        for index in range(len(bounds) - 1):
            size = draw(st.integers(1, min(3, len(names))))
            workers = tuple(draw(st.permutations(names))[:size])
            axes = (("tensor", size),) if size > 1 else ()
            stages.append(Stage(replica, index, bounds[index], bounds[index + 1], workers, axes))
    routes = [draw(crossing_whole(tuple(stages), count)) for _ in range(draw(st.integers(1, 6)))]
    kind = draw(st.sampled_from(["gpipe", "1f1b", "zero-bubble"]))
    extra = draw(st.integers(0, 2))
    return Plan(units, tuple(stages), tuple(routes), Schedule(kind, extra_in_flight=extra))


@st.composite
def profiles_for(draw: st.DrawFn, plan: Plan) -> Profile:
    """Any costs: units of their own, slow workers, uneven micro-batches, all sorts of links."""
    time = st.sampled_from([0.25, 0.5, 1.0, 1.5, 3.0])
    link = st.builds(Link, st.sampled_from([0.0, 0.125, 1.0]), st.sampled_from([0.0, 4.0, 64.0]))
    names = [unit.name for unit in plan.units]
    nodes = list(dict.fromkeys(node_of(worker) for worker in plan.workers))
    slow = [*plan.workers, *nodes, *(stage.name for stage in plan.stages)]
    pairs = [f"{a}>{b}" for a in [*nodes, plan.workers[0]] for b in [*nodes, plan.workers[-1]]]
    total = plan.num_micro_batches
    return Profile(
        unit=draw(
            st.dictionaries(
                st.sampled_from(names), st.builds(UnitCost, time, time, time), max_size=3
            )
        ),
        tensor=draw(st.sampled_from([{}, {2: 0.5}, {1: 2.0, 3: 0.75}])),
        within_node=draw(link),
        between_nodes=draw(link),
        links=draw(st.dictionaries(st.sampled_from(pairs), link, max_size=2)),
        slow=draw(st.dictionaries(st.sampled_from(slow), time, max_size=2)),
        workload=draw(
            st.one_of(st.just(()), st.lists(time, min_size=total, max_size=total).map(tuple))
        ),
    )
