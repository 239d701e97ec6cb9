"""Routes that cross between replicas: around a lost stage, or past a slow one.

Nothing moves, so these plans start at once. What they cost instead is activation memory: the
stages that help hold more micro-batches, and only with room for them does the help fit into
their bubbles. The extra room is part of the plan and is checked with it.

A lost stage is helped by a few replicas, not by all: beyond a handful of helpers nothing is
gained that moving whole micro-batches does not give as well, and the part of the plan that has
to be scheduled as one stays small.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Hop, Plan, Route, Schedule
from holdfast.plan.without_workers import without_workers
from holdfast.planner.pipelines import Pipe, Sketch, write_plan
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.strategies.repair import shrink_in_place
from holdfast.schedule.registry import priced_rule

HELPERS = 3
"""Replicas that help each one that is hit."""
MAX_JOINED = 8
"""Replicas scheduled as one."""
MOST = 0.75
MAX_PASSES = 2500
"""Micro-batches times stages scheduled as one, as far as one helper each allows."""


def reroute(view: SearchView) -> Iterator[Proposal]:
    """Micro-batches of a lost stage pass the same units of other replicas there."""
    if not view.health.gone & frozenset(view.plan.workers):
        return
    reason = "routes pass other replicas where a stage is lost; no state moves"
    if view.roster.loose:
        yield from _reroute_all(view, reason)
        return
    if not view.thorough and _keep_most(view):
        why = "every hit team keeps most of its workers: migrate gives more"
        yield Proposal("reroute", reason, refusal=why)
        return
    joined, rest = _joined(view, view.broken)
    if not joined or len(joined) > MAX_JOINED:
        why = "no replica is whole" if not joined else f"{len(view.broken)} replicas are hit"
        yield Proposal("reroute", reason, refusal=why)
        return
    lost = [sum(view.is_dead(p.teams[k]) for p in joined if k < p.depth) for k in _depths(joined)]
    left = [len(joined) - count for count in lost]
    if min(left) < 1:
        yield Proposal("reroute", reason, refusal="a stage is lost in every replica")
        return
    share = min(left) / (min(left) + len(rest)) if rest else 1.0
    for kind in view.schedules[-1:]:
        yield from _rerouted(view, joined, rest, share, kind, reason)


def _keep_most(view: SearchView) -> bool:
    """A route around a stage wastes all its workers; not worth a schedule for one in four."""
    hit = [team for n in view.broken for team in view.roster.pipes[n].teams if view.is_dead(team)]
    return all(len(view.live(team)) >= MOST * len(team.workers) for team in hit)


def _depths(pipes: Sequence[Pipe]) -> range:
    return range(max(pipe.depth for pipe in pipes))


def _joined(view: SearchView, hit: Sequence[int]) -> tuple[list[Pipe], list[Pipe]]:
    """The hit pipelines with their helpers, and all the others."""
    pipes = view.roster.pipes
    healthy = [n for n in range(len(pipes)) if n not in view.touched]
    passes = max(1, view.near * max(pipe.depth for pipe in pipes))
    room = max(2 * len(hit), MAX_PASSES // passes) - len(hit)
    helpers = healthy[: max(1, min(HELPERS * len(hit), MAX_JOINED - len(hit), room))]
    if not helpers:
        return [], []
    together = frozenset([*hit, *helpers])
    joined = [pipes[n] for n in sorted(together)]
    return joined, [pipe for n, pipe in enumerate(pipes) if n not in together]


def _rerouted(
    view: SearchView,
    joined: list[Pipe],
    rest: list[Pipe],
    share: float,
    kind: str,
    reason: str,
) -> Iterator[Proposal]:
    for_joined = min(max(len(joined), round(view.total * share)), view.total - len(rest))
    part = _part_plan(view, joined, for_joined, kind)
    extra = spare_room(view, joined, kind)
    try:
        part, _ = without_workers(part, view.health.gone)
    except HoldfastError as error:
        yield Proposal("reroute", reason, refusal=str(error))
        return
    schedule = msgspec.structs.replace(part.schedule, extra_in_flight=extra)
    part = msgspec.structs.replace(part, schedule=schedule)
    alike = all(pipe.bounds == joined[0].bounds for pipe in joined)
    bound = _no_shorter(view, joined, rest, for_joined, kind) if alike else 0.0
    words = f"{reason}; room for {extra} more micro-batches in flight"
    sketch = _others(view, rest, view.total - for_joined, kind)
    yield Proposal("reroute", words, sketch, part, bound=bound)


def _reroute_all(view: SearchView, reason: str) -> Iterator[Proposal]:
    """The plan has crossing routes already: everything is scheduled as one."""
    try:
        plan, _ = without_workers(view.plan, view.health.gone)
    except HoldfastError as error:
        yield Proposal("reroute", reason, refusal=str(error))
        return
    if len(plan.routes) * len(plan.stages) > 4096:
        yield Proposal("reroute", reason, refusal="too many routes cross already")
    elif plan.stages:
        yield Proposal("reroute", reason, plan=plan)


def _part_plan(view: SearchView, pipes: Sequence[Pipe], total: int, kind: str) -> Plan:
    counts = [(n + 1) * total // len(pipes) - n * total // len(pipes) for n in range(len(pipes))]
    base = msgspec.structs.replace(view.plan, routes=view.plan.routes[:total])
    return write_plan(Sketch(tuple(pipes), tuple(counts), kind), base)


def _others(view: SearchView, rest: list[Pipe], total: int, kind: str) -> Sketch | None:
    if not rest:
        return None
    counts = [(n + 1) * total // len(rest) - n * total // len(rest) for n in range(len(rest))]
    return Sketch(tuple(rest), tuple(counts), kind)


def _no_shorter(
    view: SearchView, pipes: Sequence[Pipe], rest: Sequence[Pipe], total: int, kind: str
) -> float:
    """No step is shorter, however micro-batches cross: at every depth the first forward has to
    come down, the live stages have to run all micro-batches between them, and what they hold is
    reduced after the last one and updated.
    """
    cost = view.cost
    split = priced_rule(kind).splits_backward
    rows = [cost.stage_times(cost.kind_of(pipe), split) for pipe in pipes]
    live = [[not view.is_dead(team) for team in pipe.teams] for pipe in pipes]
    holders = min(sum(column) for column in zip(*live, strict=True)) + len(rest)
    reductions = view.reduction_times(pipes[0], holders)
    head = longest = 0.0
    for k in range(pipes[0].depth):
        stages = [row[k] for row, alive in zip(rows, live, strict=True) if alive[k]]
        busy = total / sum(1 / sum(times) for times in stages)
        last = max(sum(times[2 if split else 1 :]) for times in stages)
        longest = max(longest, head + busy + max(0.0, reductions[k] - last))
        head += min(times[0] for times in stages)
    whole = cost.kind_of(pipes[0])
    return longest + cost.update_time([(whole.teams, whole.bounds)])


def spare_room(view: SearchView, pipes: Sequence[Pipe], kind: str) -> int:
    """How many more micro-batches every stage could hold, at most one pipeline's depth."""
    most = max(pipe.depth for pipe in pipes)
    footprint = view.cost.footprint
    for pipe in pipes:
        for k, (team, (first, stop)) in enumerate(
            zip(pipe.teams, pairwise(pipe.bounds), strict=True)
        ):
            kept = priced_rule(kind).in_flight(pipe.depth, k, 2 * pipe.depth)
            while most and not footprint.fits(first, stop, team.tensor, team.shard, kept + most):
                most -= 1
    return most


def migrate(view: SearchView) -> Iterator[Proposal]:
    """Some micro-batches leave a weak stage for the same stage of another replica, and return."""
    hit = view.touched
    if not hit or view.roster.loose:
        return
    reason = "micro-batches pass other replicas at the weak stages only"
    joined, rest = _joined(view, hit)
    if not joined or len(joined) > MAX_JOINED:
        return
    for kind in view.schedules[-1:]:
        pipes = _weakened(view, joined, kind)
        if pipes is None:
            yield Proposal("migrate", reason, refusal="a team is gone, or replicas differ")
            return
        rates = [[view.rate(team) for team in pipe.teams] for pipe in pipes]
        weakest = min(sum(row[k] for row in rates) / max(row[k] for row in rates)
                      for k in range(pipes[0].depth))  # fmt: skip
        share = weakest / (weakest + len(rest))
        total = min(max(len(pipes), round(view.total * share)), view.total - len(rest))
        part = _part_plan(view, pipes, total, kind)
        extra = spare_room(view, pipes, kind)
        routes = _passed_on(part, pipes, rates)
        schedule = Schedule(
            kind, extra, view.plan.schedule.recompute, reshard=view.plan.schedule.reshard
        )
        part = msgspec.structs.replace(part, routes=routes, schedule=schedule)
        bound = _no_shorter(view, pipes, rest, total, kind)
        yield Proposal(
            "migrate", reason, _others(view, rest, view.total - total, kind), part, bound=bound
        )


def _weakened(view: SearchView, pipes: Sequence[Pipe], kind: str) -> list[Pipe] | None:
    """The pipelines as they are without the dead; None unless all are cut at the same units."""
    made: list[Pipe] = []
    for pipe in pipes:
        left = shrink_in_place(view, pipe, kind, [])
        if left is None or left.bounds != pipes[0].bounds:
            return None
        made.append(left)
    return made


def _passed_on(plan: Plan, pipes: Sequence[Pipe], rates: list[list[float]]) -> tuple[Route, ...]:
    """Routes such that every stage gets micro-batches in proportion to its rate."""
    total = plan.num_micro_batches
    names = [f"r{pipe.replica}" for pipe in pipes]
    columns: list[list[int]] = []
    for k in range(pipes[0].depth):
        home = [names.index(route[k].stage.partition(".")[0]) for route in plan.routes]
        columns.append(_spread(home, [row[k] for row in rates], total))
    routes: list[Route] = []
    for number, route in enumerate(plan.routes):
        owners = [columns[k][number] for k in range(len(route))]
        hops = [Hop(f"{names[owner]}.s{k}", hop.first, hop.stop)
                for k, (hop, owner) in enumerate(zip(route, owners, strict=True))]  # fmt: skip
        routes.append(tuple(hops))
    return tuple(routes)


def _spread(home: list[int], rates: list[float], total: int) -> list[int]:
    """The pipeline that runs each micro-batch at one stage; as many as possible keep their own."""
    wanted = [total * rate / sum(rates) for rate in rates]
    allowed = [int(want) for want in wanted]
    by_rest = sorted(range(len(rates)), key=lambda n: (allowed[n] - wanted[n], n))
    for n in by_rest[: total - sum(allowed)]:
        allowed[n] += 1
    owners = list(home)
    for n in range(len(rates)):
        mine = [number for number, owner in enumerate(home) if owner == n]
        away = len(mine) - allowed[n]
        for i in range(max(0, away)):  # evenly over the step
            owners[mine[(2 * i + 1) * len(mine) // (2 * away)]] = -1
    free = [n for n in range(len(rates)) for _ in range(max(0, allowed[n] - home.count(n)))]
    for number, owner in enumerate(owners):
        if owner < 0:
            owners[number] = free.pop(0)
            free = free[1:] + free[:1] if len(free) > 1 else free
    return owners
