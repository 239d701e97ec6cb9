"""Dynamic parallelism: the teams at hand, arranged anew into pipelines of any lengths.

First only the teams of pipelines that are hit take part, with spares and loose teams; all others
stay as they are. Then all of them: where the layout itself is not the best one for what is left,
that can pay, although much state moves. With few teams every way to cut them into pipelines is
looked at, otherwise those of nearly even lengths. A formula ranks them, the best few are costed.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, islice, permutations, product
from math import ceil

import msgspec

from holdfast.plan.pipes import Pipe, Team
from holdfast.plan.sharing import share_micro_batches, stage_loads
from holdfast.plan.strategies.pools import CUTS, FEW, make_pool, no_team
from holdfast.plan.view import Proposal, View

MAX_ALL_WAYS = FEW
"""Up to this many teams, pipelines of all lengths are looked at."""
NUM_REFINED = 24
MAX_DEALT, MAX_DEALT_FEW = 24, 240
MIN_COSTED, MAX_COSTED = 2, 24
MAX_PASSES = 1100
"""Micro-batches times stages played through, over all costed ways."""
FAR = 1.08
"""Ways whose estimate is this much worse than the best are not costed."""
MANY_TEAMS = 40
MAX_ORDERS = 12
FEW_TEAMS = 5

FILL = {"zero-bubble": 1 / 3}
"""Share of a stage's time that every further stage adds to a step."""


class Way(msgspec.Struct, frozen=True):
    """Teams, and the lengths of the pipelines they are dealt into."""

    estimate: float
    lengths: tuple[int, ...]
    kind: str
    teams: tuple[Team, ...]
    kept: tuple[Pipe, ...]
    words: str


def arrange(view: View) -> Iterator[Proposal]:
    """Estimate all ways, refine the best, cost the best of those."""
    if not view.touched and not view.spares and not view.improve:
        return  # a healthy layout is the user's choice
    ways = [*_ways(view, view.touched), *_ways_for_all(view)]
    safe = [way for way in ways if len(way.lengths) + len(way.kept) >= view.wanted]
    ways = safe or ways
    ways.sort(key=lambda way: way.estimate)
    dealt: list[tuple[float, int, Way, list[Pipe]]] = []
    for way in ways[:NUM_REFINED]:
        few = len(way.teams) <= MAX_ALL_WAYS
        if len(dealt) >= (MAX_DEALT_FEW if few or view.thorough else MAX_DEALT):
            break
        for order in _orders(view, way.teams):
            replicas = _free_replicas(view, way.kept)
            pipes = deal(view, order, way.lengths, way.kind, replicas)
            if pipes is not None and len(pipes) + len(way.kept) <= view.total:
                whole = [*way.kept, *pipes]
                dealt.append((_refined(view, whole, way.kind), len(dealt), way, whole))
    dealt.sort(key=lambda entry: entry[:2])
    passes = 0
    for number, (estimate, _, way, whole) in enumerate(dealt[:MAX_COSTED]):
        shapes = {pipe.bounds: pipe.depth for pipe in whole}
        passes += view.total // len(whole) * sum(shapes.values())
        enough = passes > MAX_PASSES and number >= MIN_COSTED and not view.thorough
        if estimate > dealt[0][0] * FAR or enough:
            return
        yield Proposal("arrange", way.words, view.shared(whole, way.kind))


def merge(view: View) -> Iterator[Proposal]:
    """The whole teams of all hit pipelines, as many pipelines as before or one more."""
    if len(view.broken) < 2:
        return
    pool = make_pool(view, view.touched, no_team)
    kept = [pipe for n, pipe in enumerate(view.roster.pipes) if n not in view.touched]
    for kind in view.schedules:
        for count in (len(view.touched), len(view.touched) + 1):
            short, longer = divmod(len(pool), count)
            lengths = [short + 1] * longer + [short] * (count - longer)
            pipes = deal(view, pool, lengths, kind, _free_replicas(view, kept)) if short else None
            if pipes is not None and len(pipes) + len(kept) <= view.total:
                words = f"{len(pool)} whole teams as pipelines of {_runs(lengths)} stages"
                yield Proposal("merge", words, view.shared([*kept, *pipes], kind))


def _refined(view: View, pipes: Sequence[Pipe], kind: str) -> float:
    """With the units cut and micro-batches shared out as they will be, but without a timeline."""
    fill = FILL.get(kind, 1.0)
    known: dict[tuple[object, ...], tuple[float, float]] = {}
    times: list[tuple[float, float]] = []
    for pipe in pipes:
        kinds = tuple((team.tensor, team.shard, team.slow) for team in pipe.teams)
        key = (kinds, pipe.bounds)
        if key not in known:
            loads = stage_loads(view.cost.work, [view.cost.pace(k) for k in kinds], pipe.bounds)
            known[key] = (fill * (sum(loads) - max(loads)), max(loads))
        times.append(known[key])
    counts = share_micro_batches(times, view.total)
    end = max(fixed + slope * m for (fixed, slope), m in zip(times, counts, strict=True) if m)
    used = [pipe for pipe, count in zip(pipes, counts, strict=True) if count]
    return end + max(view.tail(pipe, len(used)) for pipe in {p.bounds: p for p in used}.values())


def _ways_for_all(view: View) -> list[Way]:
    """Of all pipelines, if they are not too many; there is `regular` for those."""
    everyone = range(len(view.roster.pipes))
    num_teams = sum(pipe.depth for pipe in view.roster.pipes)
    if num_teams > MANY_TEAMS or len(view.touched) == len(everyone):
        return []
    return _ways(view, everyone)


def _ways(view: View, numbers: Sequence[int]) -> list[Way]:
    """Of these pipelines, with every kind of cut for their hit teams."""
    chosen = frozenset(numbers)
    kept = tuple(pipe for n, pipe in enumerate(view.roster.pipes) if n not in chosen)
    ways: list[Way] = []
    seen: set[tuple[tuple[str, ...], ...]] = set()
    for label, cut in CUTS if view.touched or view.spares else CUTS[:1]:
        pool = make_pool(view, numbers, cut)
        members = tuple(team.workers for team in pool)
        if not pool or members in seen:
            continue
        seen.add(members)
        least = _least_teams(view, pool)
        for lengths in ways_to_cut(len(pool), _home(view), bool(kept)):
            if min(lengths) < least:
                continue
            used = _strongest(view, pool, sum(lengths))
            words = f"{len(used)} teams as pipelines of {_runs(lengths)} stages, {label}"
            for kind in view.schedules:
                estimate = _estimate(view, used, lengths, kept, kind)
                ways.append(Way(estimate, lengths, kind, tuple(used), kept, words))
    return ways


def _runs(lengths: Sequence[int]) -> str:
    """`4+4+3`, or `126x16+15` where there are many."""
    counts = {length: lengths.count(length) for length in lengths}
    rows = [
        f"{n}x{length}" if n > 3 else "+".join([str(length)] * n) for length, n in counts.items()
    ]
    return "+".join(rows)


def _strongest(view: View, pool: Sequence[Team], count: int) -> list[Team]:
    """As many teams as are used; the slowest are left out."""
    if count == len(pool):
        return list(pool)
    ranked = sorted(range(len(pool)), key=lambda n: (-view.rate(pool[n]), n))[:count]
    return [pool[n] for n in sorted(ranked)]


def _estimate(
    view: View,
    teams: Sequence[Team],
    lengths: Sequence[int],
    kept: Sequence[Pipe],
    kind: str,
) -> float:
    """All micro-batches and the fill of every pipeline at the sum of all rates, and the
    reductions of the shortest pipeline, which holds most per team.
    """
    fill = FILL.get(kind, 1.0)
    lengths = [*lengths, *(pipe.depth for pipe in kept)]
    used = [*teams, *(team for pipe in kept for team in pipe.teams)]
    per_team = sum(view.rate(team) for team in used) / len(used)
    few = len(used) <= MAX_ALL_WAYS
    rates = sum(
        per_team * length / (1.0 if few else coarseness(view, length)) for length in lengths
    )
    fills = sum(length - 1 for length in lengths)
    work = view.cost.work[-1] * (view.total + fill * fills) / rates
    shortest, count = min(lengths), len(lengths)
    most = max(view.cost.buckets[-1] / shortest, *view.cost.bucket_bytes) / view.widest
    link, units = view.cost.profile.reduce, len(view.plan.units) / shortest
    return work + 2 * (count - 1) * (link.occupancy(most) / count + units * link.latency)


def coarseness(view: View, length: int) -> float:
    """Units stay whole: the fullest of `length` even stages over the mean of all."""
    work = view.cost.work
    num_units = work[-1] / max(work[n + 1] - work[n] for n in range(1, len(work) - 2))
    return max(1.0, ceil(num_units / length - 0.15) * length / num_units)


def _home(view: View) -> int:
    return max((pipe.depth for pipe in view.roster.pipes), default=1)


def _least_teams(view: View, pool: Sequence[Team]) -> int:
    """No pipeline can hold the model with fewer teams."""
    footprint, limit = view.cost.footprint, view.plan.limits.device_bytes
    if not limit:
        return 1
    state = view.plan.state_bytes
    per_element = state.parameter + state.gradient + state.optimizer
    largest = max(len(team.workers) for team in pool)
    units = len(view.plan.units)
    whole = footprint.most_held(0, units, 1) * per_element
    return max(1, -(-whole // (limit * largest)))


@lru_cache(maxsize=1024)
def ways_to_cut(num_teams: int, home: int, near: bool = False) -> tuple[tuple[int, ...], ...]:
    """Lengths of pipelines, longest first: all of them if there are few teams. Else nearly even
    ones, with all teams or with a few left out; `near` keeps the number of pipelines.
    """
    if num_teams <= MAX_ALL_WAYS:
        return tuple(_partitions(num_teams, num_teams))
    usual = max(1, round(num_teams / home))
    if near:
        counts = list(range(max(1, usual - 2), min(num_teams, usual + 3) + 1))
    else:
        depths = sorted({*range(1, 25), 32, home - 1, home, home + 1})
        counts = sorted({num_teams // d for d in depths if 0 < d <= num_teams})
    ways: dict[tuple[int, ...], None] = {}
    for count in counts:
        short, longer = divmod(num_teams, count)
        ways[(short + 1,) * longer + (short,) * (count - longer)] = None
        ways[(short,) * count] = None
        rest = num_teams - home * (count - 1)
        if rest > 0:
            ways[tuple(sorted([home] * (count - 1) + [rest], reverse=True))] = None
    return tuple(ways)


def _partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    if total == 0:
        yield ()
    for first in range(min(total, largest), 0, -1):
        for rest in _partitions(total - first, first):
            yield (first, *rest)


def _orders(view: View, pool: Sequence[Team]) -> Iterator[list[Team]]:
    """As they stand; the weak ones together at the end; with few teams, every order of weak ones
    among the others.
    """
    yield list(pool)
    by_rate = sorted(pool, key=lambda team: -view.rate(team))
    if by_rate != list(pool):
        yield by_rate
    usual = view.rate(by_rate[0])
    weak = [team for team in by_rate if view.rate(team) < usual * (1 - 1e-9)]
    strong = by_rate[: len(by_rate) - len(weak)]
    if len(pool) > MAX_ALL_WAYS or not strong or len(weak) > 2:
        return
    limit = MAX_ORDERS if len(pool) > FEW_TEAMS else 10 * MAX_ORDERS
    places = product(permutations(weak), combinations(range(len(pool)), len(weak)))
    for row, chosen in islice(places, limit):
        order = list(strong)
        for place, team in zip(chosen, row, strict=True):
            order.insert(place, team)
        if order not in (by_rate, list(pool)):
            yield order


def deal(
    view: View, teams: Sequence[Team], lengths: Sequence[int], kind: str, replicas: Iterator[int]
) -> list[Pipe] | None:
    """Teams in order into pipelines of these lengths; None where one cannot hold the model."""
    pipes: list[Pipe] = []
    at = 0
    for length in lengths:
        pipe = view.resplit(Pipe(next(replicas), tuple(teams[at : at + length])), kind)
        if pipe is None:
            return None
        pipes.append(pipe)
        at += length
    return pipes


def _free_replicas(view: View, kept: Sequence[Pipe]) -> Iterator[int]:
    """Numbers of the pipelines that are arranged anew, then numbers nobody has."""
    used = frozenset(pipe.replica for pipe in kept)
    yield from (pipe.replica for pipe in view.roster.pipes if pipe.replica not in used)
    number = max(view.plan.replicas, default=-1)
    while True:
        number += 1
        yield number
