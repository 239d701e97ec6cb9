"""Dynamic parallelism: the teams at hand, arranged anew into pipelines of any lengths.

First only the teams of pipelines that are hit take part, with spares and loose teams; all others
stay as they are. Then all of them: where the layout itself is not the best one for what is left,
that can pay, although much state moves. With few teams every way to cut them into pipelines is
looked at, otherwise those of nearly even lengths.

Ways are many, so they pass three filters, each finer and slower than the one before:

    1. every way as if units and micro-batches could go anywhere, which is nearly never above
    2. the best with their units cut, micro-batches shared and reductions added up, by formula; in
       several line-ups, which are told apart by speeds alone
    3. the best of those on the timeline, until the next estimate is above the best time
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import ceil, inf

import msgspec

from holdfast.planner.minimax_shares import Affine, share_micro_batches, water_level
from holdfast.planner.pipelines import Pipe, Team
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.step_cost import Outline, PipelineShape, TeamKind
from holdfast.planner.strategies.lineups import (
    all_places,
    dealt,
    other_lineups,
    usual_lineups,
)
from holdfast.planner.strategies.pools import CUTS, FEW, Cut, make_pool, no_team, recuts
from holdfast.schedule.registry import priced_rule

MAX_REFINED, MAX_REORDERED, MAX_PLACED = 24, 10, 3
"""Ways that are refined; those of them that get more line-ups, and all places of weak teams."""
FEW_UNITS = 16
"""Units so coarse that estimates say little: with few teams, all ways are refined in all line-ups
and many are costed.
"""
SMALL = 256
"""Devices. Larger clusters are worth more time: twice as many of their ways are refined."""
MAX_COSTED = 12
OVER = 1.01
"""Second estimates are rarely this much above the truth."""
MANY_TEAMS = 40

TeamRow = tuple[TeamKind, ...]
"""The teams of a pipeline, by their speeds."""


class Beside(msgspec.Struct, frozen=True, eq=False):
    """Pipelines that stay as they are, under one schedule."""

    pipes: tuple[Pipe, ...]
    rough: tuple[Affine, ...]
    lines: tuple[Affine, ...]
    outlines: dict[PipelineShape, Outline]
    """Of the different ones."""


class Way(msgspec.Struct, frozen=True):
    """Teams, and the lengths of the pipelines they are dealt into."""

    estimate: float
    lengths: tuple[int, ...]
    kind: str
    teams: tuple[Team, ...]
    beside: Beside
    label: str


class Dealt(msgspec.Struct, frozen=True):
    """A way with its teams in line."""

    estimate: float
    number: int
    """Of the way."""
    teams: tuple[Team, ...]


def arrange(view: SearchView) -> Iterator[Proposal]:
    """Estimate all ways, refine the best, cost the best of those."""
    if not view.touched and not view.spares and not view.improve:
        return  # a healthy layout is the user's choice
    ways = [*_ways(view, view.touched), *_ways_for_all(view)]
    safe = [way for way in ways if len(way.lengths) + len(way.beside.pipes) >= view.wanted]
    ways = sorted(safe or ways, key=lambda way: way.estimate)
    refinement = _Refinement(view, ways)
    many = MAX_REFINED if len(view.plan.workers) <= SMALL else 2 * MAX_REFINED
    coarse = len(view.plan.units) <= FEW_UNITS and all(len(way.teams) <= FEW for way in ways)
    every = coarse or view.thorough
    for number, way in enumerate(ways[: None if every else many]):
        if way.estimate > refinement.least * OVER and not every:
            break
        refinement.refine(number, usual_lineups(view, way.teams, way.lengths))
    for number in refinement.best(None if coarse else MAX_REORDERED):
        refinement.refine(number, other_lineups(view, ways[number].teams, ways[number].lengths))
    for number in refinement.best(None if coarse else MAX_PLACED):
        if len(ways[number].teams) <= FEW:
            refinement.refine(number, all_places(view, ways[number].teams))
    most = 14 * MAX_COSTED if coarse else 4 * MAX_COSTED if every else 0
    yield from _costed(view, ways, refinement.found, most)


class _Refinement:
    """The second one."""

    def __init__(self, view: SearchView, ways: Sequence[Way]) -> None:
        self.view, self.ways = view, ways
        self.found: list[Dealt] = []
        self.seen: set[tuple[tuple[TeamRow, ...], Beside]] = set()
        self.outlines: dict[tuple[TeamRow, str], Outline | None] = {}
        self.least = inf

    def refine(self, number: int, lineups: Iterable[Sequence[Team]]) -> None:
        way = self.ways[number]
        for teams in lineups:
            rows = tuple(map(tuple, dealt(_row(teams), way.lengths)))
            key = (rows, way.beside)
            if key in self.seen:
                continue  # the same speeds in the same places
            self.seen.add(key)
            estimate = self._estimate(way, rows)
            if estimate is not None:
                self.least = min(self.least, estimate)
                self.found.append(Dealt(estimate, number, tuple(teams)))

    def best(self, count: int | None) -> list[int]:
        """The numbers of the best ways so far; of all of them without a count."""
        ranked = sorted(self.found, key=lambda entry: entry.estimate)
        return list(dict.fromkeys(entry.number for entry in ranked))[:count]

    def _estimate(self, way: Way, rows: Sequence[TeamRow]) -> float | None:
        """With the units cut and micro-batches shared out as they will be."""
        lines, outlines = list(way.beside.lines), dict.fromkeys(way.beside.outlines.values())
        if len(lines) + len(rows) > self.view.total:
            return None
        for row in rows:
            outline = self._outline(row, way.kind)
            if outline is None:
                return None
            outlines[outline] = None
            lines.append(outline.line)
        counts = share_micro_batches(lines, self.view.total)
        end = max([fixed + slope * m for (fixed, slope), m in zip(lines, counts, strict=True) if m])
        return end + self.view.cost.epilogue_time(list(outlines), sum(map(bool, counts)))

    def _outline(self, row: TeamRow, kind: str) -> Outline | None:
        """None where these teams cannot hold the model."""
        key = (row, kind)
        if key not in self.outlines:
            cost, near = self.view.cost, self.view.near
            bounds = cost.split(row, kind, near)
            self.outlines[key] = cost.outline((row, bounds), kind, near) if bounds else None
        return self.outlines[key]


def _costed(
    view: SearchView, ways: Sequence[Way], found: Sequence[Dealt], most: int
) -> Iterator[Proposal]:
    """The best by estimate: `most` of them, or (0) until no other can be better than the best."""
    best = inf
    ranked = sorted(found, key=lambda entry: entry.estimate)
    for entry in ranked[: most or MAX_COSTED]:
        if entry.estimate > best * OVER and not most:
            return
        way = ways[entry.number]
        replicas = _free_replicas(view, way.beside.pipes)
        pipes = deal(view, entry.teams, way.lengths, way.kind, replicas)
        if pipes is None:
            continue
        sketch = view.shared([*way.beside.pipes, *pipes], way.kind)
        if not view.cost.refusal(sketch):
            best = min(best, view.cost.step_time(sketch))
        words = f"pipelines of {_runs(way.lengths)} stages, {way.label}"
        yield Proposal("arrange", f"{len(way.teams)} teams as {words}", sketch)


def merge(view: SearchView) -> Iterator[Proposal]:
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


def _ways_for_all(view: SearchView) -> list[Way]:
    """Of all pipelines, if they are not too many; there is `regular` for those."""
    all_pipes = range(len(view.roster.pipes))
    num_teams = sum(pipe.depth for pipe in view.roster.pipes)
    if num_teams > MANY_TEAMS or len(view.touched) == len(all_pipes):
        return []
    return _ways(view, all_pipes)


def _ways(view: SearchView, numbers: Sequence[int]) -> list[Way]:
    """Of these pipelines, with every kind of cut for their hit teams."""
    chosen = frozenset(numbers)
    kept = tuple(pipe for n, pipe in enumerate(view.roster.pipes) if n not in chosen)
    beside = {kind: _beside(view, kept, kind) for kind in view.schedules}
    ways: list[Way] = []
    seen: set[tuple[tuple[str, ...], ...]] = set()
    for label, cut, whole in _cuts(view):
        pool = make_pool(view, numbers, cut, whole)
        members = tuple(team.workers for team in pool)
        if not pool or members in seen:
            continue
        seen.add(members)
        least = _least_teams(view, pool)
        known: dict[int, tuple[tuple[Team, ...], list[_Lineup]]] = {}
        for lengths in ways_to_cut(len(pool), _home(view), bool(kept)):
            if min(lengths) < least:
                continue
            count = sum(lengths)
            if count not in known:
                used = tuple(strongest(view, pool, count))
                rows = (_row(used), tuple(sorted(_row(used), key=view.cost.pace)))
                known[count] = used, [_Lineup(view, row) for row in dict.fromkeys(rows)]
            used, lineups = known[count]
            for kind in view.schedules:
                time = _estimate(view, lineups, lengths, beside[kind], kind)
                ways.append(Way(time, lengths, kind, used, beside[kind], label))
    return ways


def _cuts(view: SearchView) -> Iterable[tuple[str, Cut, Cut | None]]:
    if view.recut:
        return recuts(view)
    return [(label, cut, None) for label, cut in CUTS[: None if view.touched or view.spares else 1]]


class _Lineup:
    """Teams in line. Many ways cut the same pipelines from it."""

    def __init__(self, view: SearchView, teams: TeamRow) -> None:
        self.cost, self.teams = view.cost, teams
        self.known: dict[tuple[int, int, float], Affine] = {}

    def lines(self, lengths: Sequence[int], fill: float) -> list[Affine]:
        """The times of the pipelines, roughly."""
        lines: list[Affine] = []
        at = 0
        for length in lengths:
            key = (at, length, fill)
            if key not in self.known:
                self.known[key] = self.cost.rough(self.teams[at : at + length], fill)
            lines.append(self.known[key])
            at += length
        return lines


def _row(teams: Sequence[Team]) -> TeamRow:
    return tuple([(team.tensor, team.shard, team.slow) for team in teams])


def _beside(view: SearchView, pipes: tuple[Pipe, ...], kind: str) -> Beside:
    shapes = [(_row(pipe.teams), pipe.bounds) for pipe in pipes]
    different = dict.fromkeys(shapes)
    outlines = {shape: view.cost.outline(shape, kind, view.near) for shape in different}
    return Beside(
        pipes,
        tuple(view.cost.rough(row, priced_rule(kind).fill) for row, _ in shapes),
        tuple(outlines[shape].line for shape in shapes),
        outlines,
    )


def _runs(lengths: Sequence[int]) -> str:
    """`4+4+3`, or `126x16+15` where there are many."""
    counts = {length: lengths.count(length) for length in lengths}
    rows = [
        f"{n}x{length}" if n > 3 else "+".join([str(length)] * n) for length, n in counts.items()
    ]
    return "+".join(rows)


def strongest(view: SearchView, pool: Sequence[Team], count: int) -> list[Team]:
    """As many teams as are used; the slowest are left out."""
    if count == len(pool):
        return list(pool)
    ranked = sorted(range(len(pool)), key=lambda n: (-view.rate(pool[n]), n))[:count]
    return [pool[n] for n in sorted(ranked)]


def _estimate(
    view: SearchView, lineups: Sequence[_Lineup], lengths: Sequence[int], beside: Beside, kind: str
) -> float:
    """As if units and micro-batches could go anywhere, in the best line-up, and the reductions of
    the shortest pipeline, which holds most per team.
    """
    cost, fill = view.cost, priced_rule(kind).fill
    lines = [[*beside.rough, *lineup.lines(lengths, fill)] for lineup in lineups]
    level = min([water_level(row, view.total) for row in lines])
    shortest = min([*lengths, *[len(bounds) - 1 for _, bounds in beside.outlines]])
    count, link = len(beside.rough) + len(lengths), cost.profile.reduce
    most = max(cost.buckets[-1] / shortest, cost.largest_bucket) / view.widest
    reduced = link.occupancy(most) / count + len(view.plan.units) / shortest * link.latency
    return level + 2 * (count - 1) * reduced


def coarseness(view: SearchView, length: int) -> float:
    """Units stay whole: the fullest of `length` even stages over the mean of all."""
    num_units = view.cost.work[-1] / view.cost.block
    return max(1.0, ceil(num_units / length - 0.15) * length / num_units)


def _home(view: SearchView) -> int:
    return max((pipe.depth for pipe in view.roster.pipes), default=1)


def _least_teams(view: SearchView, pool: Sequence[Team]) -> int:
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
    if num_teams <= FEW:
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


def deal(
    view: SearchView,
    teams: Sequence[Team],
    lengths: Sequence[int],
    kind: str,
    replicas: Iterator[int],
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


def _free_replicas(view: SearchView, kept: Sequence[Pipe]) -> Iterator[int]:
    """Numbers of the pipelines that are arranged anew, then free numbers."""
    used = frozenset(pipe.replica for pipe in kept)
    yield from (pipe.replica for pipe in view.roster.pipes if pipe.replica not in used)
    number = max(view.plan.replicas, default=-1)
    while True:
        number += 1
        yield number
