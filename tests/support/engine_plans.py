"""Small plans for real runs: built by hand, or by chance from anything that picks numbers."""

from collections.abc import Callable, Sequence

from holdfast.engine.runnable import check_runnable
from holdfast.errors import HoldfastError
from holdfast.plan.build import deal_routes, regular_plan
from holdfast.plan.check import check_plan
from holdfast.plan.plan import Hop, Plan, Reshard, Route, Schedule, Stage, whole_route
from holdfast.plan.units import Unit

Pick = Callable[[int, int], int]
"""A number between two, both included: `random.Random(7).randint`, or a draw of hypothesis."""

RESHARDS: tuple[Reshard, Reshard] = ("after_forward", "after_backward")
KINDS = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def named(*numbers: int) -> tuple[str, ...]:
    return tuple(f"n0.g{number}" for number in numbers)


def make_stage(
    replica: int, index: int, first: int, stop: int, *workers: int, shard: int = 1
) -> Stage:
    """Units first .. stop - 1 on workers given by number; several share them by the shard axis,
    where a degree is given, and by the tensor axis.
    """
    degrees = (("shard", shard), ("tensor", len(workers) // shard))
    axes = tuple((name, degree) for name, degree in degrees if degree > 1)
    return Stage(replica, index, first, stop, named(*workers), axes)


def make_plan(
    units: Sequence[Unit],
    stages: Sequence[Stage],
    counts: Sequence[int] | None = None,
    *,
    routes: Sequence[Route] | None = None,
    schedule: Schedule | str = "1f1b",
) -> Plan:
    """With `counts` micro-batches per replica, or routes given one by one."""
    if routes is None:
        assert counts is not None
        chains = [
            whole_route(tuple(stage for stage in stages if stage.replica == replica))
            for replica in range(len(counts))
        ]
        routes = deal_routes(chains, sum(counts), counts)
    kind = Schedule(schedule) if isinstance(schedule, str) else schedule
    return Plan(tuple(units), tuple(stages), tuple(routes), kind)


def any_plan(
    pick: Pick, units: Sequence[Unit], num_micro_batches: int, max_workers: int, base: int = 0
) -> Plan:
    """A plan that can be run with at most that many workers, numbered from `base` on: of equal
    replicas, or with depths, splits, tensor and shard degrees and routes of their own, or with
    workers that fill several seats.
    """
    for _ in range(20):
        make = (_equal_replicas, _own_replicas, _own_replicas, _shared_workers)[pick(0, 3)]
        plan = make(pick, units, num_micro_batches, max_workers, base)
        recompute = pick(0, 3) == 0
        for kind in (KINDS[pick(0, 3)], "1f1b", "gpipe"):
            extra, reshard = pick(0, 1), RESHARDS[pick(0, 1)]
            schedule = Schedule(kind, extra, recompute, reshard=reshard)
            found = Plan(plan.units, plan.stages, plan.routes, schedule)
            try:
                check_plan(found)
                check_runnable(found)
            except HoldfastError:
                continue  # not every schedule suits every plan, and some plans have none
            return found
    raise AssertionError("twenty plans in a row cannot be run")


def _equal_replicas(
    pick: Pick, units: Sequence[Unit], num_micro_batches: int, max_workers: int, base: int
) -> Plan:
    tensor = pick(1, min(3, max_workers))
    shard = pick(1, min(3, max_workers // tensor))
    seats = tensor * shard
    stages = pick(1, min(len(units), max_workers // seats))
    replicas = pick(1, min(num_micro_batches, max_workers // (seats * stages)))
    virtual = pick(1, 2) if 2 * stages <= len(units) else 1
    count = replicas * stages * seats
    return regular_plan(
        units,
        replicas=replicas,
        stages=stages,
        tensor=tensor,
        shard=shard,
        virtual=virtual,
        micro_batches=num_micro_batches,
        workers=named(*range(base, base + count)),
    )


def _own_replicas(
    pick: Pick, units: Sequence[Unit], num_micro_batches: int, max_workers: int, base: int
) -> Plan:
    """Each replica has its own stages and degrees; some routes cross over."""
    left, stages = max_workers, []
    replicas = pick(1, min(3, num_micro_batches, max_workers))
    for replica in range(replicas):
        budget = left - (replicas - replica - 1)  # one at least for each that follows
        depth = pick(1, min(3, len(units), budget))
        bounds = _bounds(pick, len(units), depth)
        for index in range(depth):
            spare = budget - (depth - index - 1)
            tensor = pick(1, min(3, spare))
            shard = pick(1, min(3, spare // tensor))
            first = base + max_workers - left
            numbers = range(first, first + tensor * shard)
            here = bounds[index : index + 2]
            stages.append(make_stage(replica, index, *here, *numbers, shard=shard))
            left, budget = left - len(numbers), budget - len(numbers)
    return _with_routes(pick, units, stages, replicas, num_micro_batches)


def _shared_workers(
    pick: Pick, units: Sequence[Unit], num_micro_batches: int, max_workers: int, base: int
) -> Plan:
    """One chain over few workers, several seats for each; perhaps a copy that no route passes."""
    depth = pick(2, len(units))
    count = pick(1, min(3, max_workers))
    bounds = _bounds(pick, len(units), depth)
    stages = []
    for index in range(depth):
        first, tensor = pick(0, count - 1), pick(1, min(2, count))
        seats = [base + (first + number) % count for number in range(tensor)]
        stages.append(make_stage(0, index, *bounds[index : index + 2], *seats))
    if count < max_workers and pick(0, 1):
        at = pick(0, depth - 1)
        stages.append(make_stage(1, 0, *bounds[at : at + 2], base + count))
    return make_plan(units, stages, [num_micro_batches])


def _bounds(pick: Pick, num_units: int, depth: int) -> list[int]:
    """Where the stages of a replica begin and end: every one gets a unit at least."""
    bounds = [0]
    for index in range(depth - 1):
        bounds.append(pick(bounds[-1] + 1, num_units - (depth - 1 - index)))
    return [*bounds, num_units]


def _with_routes(
    pick: Pick, units: Sequence[Unit], stages: list[Stage], replicas: int, num_micro_batches: int
) -> Plan:
    counts = [1] * replicas
    for _ in range(num_micro_batches - replicas):
        counts[pick(0, replicas - 1)] += 1
    plan = make_plan(units, stages, counts)
    routes = list(plan.routes)
    for number in range(num_micro_batches):
        if pick(0, 2) == 0:
            routes[number] = _crossing(pick, stages, len(units)) or routes[number]
    return make_plan(units, stages, routes=routes)


def _crossing(pick: Pick, stages: Sequence[Stage], num_units: int) -> Route | None:
    """Any stage that holds the next unit may go on, as far as it likes; None if that led astray."""
    hops: list[Hop] = []
    while (at := hops[-1].stop if hops else 0) < num_units:
        used = {hop.stage for hop in hops}
        able = [s for s in stages if s.first <= at < s.stop and s.name not in used]
        if not able:
            return None
        stage = able[pick(0, len(able) - 1)]
        hops.append(Hop(stage.name, at, pick(at + 1, stage.stop)))
    return tuple(hops)
