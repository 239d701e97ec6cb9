"""A regular layout from all teams: pipelines of one length, what does not divide stays idle.

Where the layout itself is not the best one for the devices that are left, no repair of single
pipelines reaches what a new layout gives. All pipelines of a length are alike, so one of each
length is looked at, whatever the number of devices.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.planner.pipelines import Pipe, Sketch, Team
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.strategies.arrange import coarseness, strongest
from holdfast.planner.strategies.pools import Cut, make_pool, no_team, one_team
from holdfast.schedule.registry import priced_rule

MAX_DEPTH, MAX_DEPTH_THOROUGH = 32, 64
NUM_REFINED, NUM_COSTED, NUM_VARIED = 6, 2, 6
CUTS: tuple[tuple[str, Cut], ...] = (
    ("hit teams left out", no_team),
    ("hit teams at their fastest", one_team),
)


def regular(view: SearchView) -> Iterator[Proposal]:
    if not view.touched and not view.improve:
        return  # a healthy layout is the user's choice
    for label, cut in CUTS:
        pool = make_pool(view, range(len(view.roster.pipes)), cut)
        ranked = sorted(pool, key=lambda team: -view.rate(team))
        for kind in view.schedules:
            lengths = sorted(_lengths(view, ranked, kind))
            most = None if view.thorough else NUM_COSTED
            for at, (_, depth, count) in enumerate(lengths[:most]):
                words = f"{count} pipelines of {depth} stages from all teams, {label}"
                lineups: tuple[Sequence[Team], ...] = (ranked,)
                if view.thorough and at < NUM_VARIED:
                    lineups = (ranked, strongest(view, pool, depth * count))
                for sketch in _sketches(view, lineups, depth, count, kind):
                    yield Proposal("regular", words, sketch)


def _sketches(
    view: SearchView, lineups: Sequence[Sequence[Team]], depth: int, count: int, kind: str
) -> Iterator[Sketch]:
    """Teams by rate, and with several line-ups in their places, too; then also with equal shares,
    and with the units of all pipelines cut alike, which lets reductions wait less for each other.
    """
    for teams in lineups:
        pipes = _pipes(view, teams, depth, count, kind)
        if pipes is None:
            continue
        yield view.shared(pipes, kind)
        if len(lineups) == 1:
            continue
        equal = [(n + 1) * view.total // count - n * view.total // count for n in range(count)]
        yield Sketch(tuple(pipes), tuple(equal), kind)
        bounds = Counter(pipe.bounds for pipe in pipes).most_common(1)[0][0]
        alike = [msgspec.structs.replace(pipe, bounds=bounds) for pipe in pipes]
        yield view.shared(alike, kind)
        yield Sketch(tuple(alike), tuple(equal), kind)


def _lengths(view: SearchView, pool: Sequence[Team], kind: str) -> Iterator[tuple[float, int, int]]:
    """(estimated time, length, number of pipelines) of the lengths that may be best."""
    rough: list[tuple[float, int, int]] = []
    longest = MAX_DEPTH_THOROUGH if view.thorough else MAX_DEPTH
    for depth in range(1, min(len(pool), len(view.plan.units), longest) + 1):
        count = min(len(pool) // depth, view.total)
        if count < view.wanted:
            break
        rough.append((_rough(view, pool[0], depth, count, kind), depth, count))
    tried = 0
    for _, depth, count in sorted(rough):
        pipe = view.resplit(Pipe(0, tuple(pool[:depth])), kind)
        if pipe is not None:
            yield _estimate(view, pipe, count, kind), depth, count
            tried += 1
        if tried == NUM_REFINED and not view.thorough:
            return


def _rough(view: SearchView, team: Team, depth: int, count: int, kind: str) -> float:
    """As if all teams were like the first, from numbers alone."""
    cost, link = view.cost, view.cost.profile.reduce
    share = cost.work[-1] / view.rate(team) / depth * coarseness(view, depth)
    steps = -(-view.total // count) + priced_rule(kind).fill * (depth - 1)
    most = max(cost.buckets[-1] / depth, cost.largest_bucket) / len(team.workers)
    units = len(view.plan.units) / depth
    reduced = 2 * (count - 1) * (link.occupancy(most) / count + units * link.latency)
    return share * steps + reduced


def _estimate(view: SearchView, pipe: Pipe, count: int, kind: str) -> float:
    cost = view.cost
    shape = cost.kind_of(pipe)
    rule = priced_rule(kind)
    times = cost.stage_times(shape, rule.splits_backward)
    sizes = [view.plan.units[stop - 1].boundary_bytes for stop in pipe.bounds[1:-1]]
    delays = [
        link.latency + link.occupancy(size) for link, size in zip(shape.down, sizes, strict=True)
    ]
    loads = [sum(row) for row in times]
    slope = rule.period(times, delays)
    fill = rule.fill * (sum(loads) - max(loads)) + 2 * sum(delays)
    return slope * -(-view.total // count) + fill + view.epilogue_time(pipe, count)


def _pipes(
    view: SearchView, pool: Sequence[Team], depth: int, count: int, kind: str
) -> list[Pipe] | None:
    pipes: list[Pipe] = []
    for number in range(count):
        teams = tuple(pool[number * depth : (number + 1) * depth])
        pipe = view.resplit(Pipe(number, teams), kind)
        if pipe is None:
            return None
        pipes.append(pipe)
    return pipes
