"""Routes as text: `r0.s0 r1.s1[4-5]`, and equal blocks of whole replicas written once."""

import re
from collections.abc import Iterator, Mapping

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Hop, Plan, Route, Stage, whole_route
from holdfast.plan.workers import format_range, parse_range


def route_runs(plan: Plan) -> Iterator[tuple[str, str]]:
    """Micro-batches in order, as (numbers, route text); equal blocks of consecutive replicas
    become one line.
    """
    whole = {whole_route(stages): replica for replica, stages in plan.replicas.items()}
    runs: list[tuple[int, int, Route]] = []
    for number, route in enumerate(plan.routes):
        if runs and runs[-1][2] == route:
            runs[-1] = (runs[-1][0], number, route)
        else:
            runs.append((number, number, route))
    at = 0
    while at < len(runs):
        low, _, route = runs[at]
        replica = whole.get(route)
        stop = at + 1
        if replica is not None:
            while stop < len(runs) and _continues(runs[stop], runs[at], replica + stop - at, whole):
                stop += 1
            name = "r" + format_range(replica, replica + stop - at - 1)
        else:
            name = format_route(route, plan)
        yield format_range(low, runs[stop - 1][1]), name
        at = stop


def _continues(
    run: tuple[int, int, Route],
    first: tuple[int, int, Route],
    replica: int,
    whole: dict[Route, int],
) -> bool:
    return whole.get(run[2]) == replica and run[1] - run[0] == first[1] - first[0]


def format_route(route: Route, plan: Plan) -> str:
    return " ".join(_format_hop(hop, plan) for hop in route) or "nowhere"


def _format_hop(hop: Hop, plan: Plan) -> str:
    stage = plan.stage_by_name.get(hop.stage)
    if stage is not None and (stage.first, stage.stop) == (hop.first, hop.stop):
        return hop.stage
    return f"{hop.stage}[{hop.first}-{hop.stop - 1}]"


def parse_route(text: str, stages: Mapping[str, Stage]) -> Route:
    return tuple(_parse_hop(word, stages) for word in text.split() if text != "nowhere")


def _parse_hop(word: str, stages: Mapping[str, Stage]) -> Hop:
    match = re.fullmatch(r"(r\d+\.s\d+)(?:\[(\d+)-(-?\d+)\])?", word)
    if match is None:
        raise HoldfastError(f"{word!r} in a route is not a stage like r0.s1 or r0.s1[4-5]")
    if match[2] is not None:
        return Hop(match[1], int(match[2]), int(match[3]) + 1)
    if match[1] not in stages:
        raise HoldfastError(f"a route passes {match[1]}, which no replica describes")
    stage = stages[match[1]]
    return Hop(stage.name, stage.first, stage.stop)


def parse_routes(
    table: Mapping[str, str], total: object, stages: tuple[Stage, ...]
) -> tuple[Route, ...]:
    if not isinstance(total, int) or total < 0:
        raise HoldfastError(f"micro_batches = {total!r}: a number is needed")
    by_name = {stage.name: stage for stage in stages}
    routes: list[Route | None] = [None] * total
    for numbers, text in table.items():
        low, high = parse_range(numbers)
        if high >= total:
            raise HoldfastError(f"route {numbers!r} names micro-batch {high}, the step has {total}")
        for number, route in zip(
            range(low, high + 1), _expand(text, high - low + 1, by_name), strict=True
        ):
            if routes[number] is not None:
                raise HoldfastError(f"micro-batch {number} has two routes; the second is {text!r}")
            routes[number] = route
    missing = [number for number, route in enumerate(routes) if route is None]
    if missing:
        raise HoldfastError(
            f"micro-batch {missing[0]} has no route ({len(missing)} of {total} have none)"
        )
    return tuple(route for route in routes if route is not None)


def _expand(text: str, count: int, stages: Mapping[str, Stage]) -> Iterator[Route]:
    match = re.fullmatch(r"r(\d+)(?:-(\d+))?", text.strip())
    if match is None:
        yield from [parse_route(text, stages)] * count
        return
    replicas = range(int(match[1]), int(match[2] or match[1]) + 1)
    if not replicas or count % len(replicas):
        raise HoldfastError(f"{count} micro-batches do not divide into equal blocks over {text!r}")
    for replica in replicas:
        chain = tuple(stage for stage in stages.values() if stage.replica == replica)
        if not chain:
            raise HoldfastError(f"a route passes replica r{replica}, which is not described")
        yield from [whole_route(chain)] * (count // len(replicas))
