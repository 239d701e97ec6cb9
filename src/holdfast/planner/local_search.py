"""Fine tuning: bounds aligned, single micro-batches moved between pipelines, single units between
stages, workers traded away from slow links (`trading.py`).

Units are reduced over all pipelines, one after the other on every stage, so stages with the same
units wait less for each other than those that overlap: where a pipeline has room below its slowest
stage, its bounds follow those of the others.

Shares of micro-batches are found by straight lines, which are exact near an even share only. The
minimax split makes the slowest stage fastest, but a step also has a beginning and an end, in
which the other stages count. So single steps are tried, as long as the timeline says that they
help.
"""

from collections.abc import Iterator

import msgspec

from holdfast.planner.minimax_shares import align_units, stage_loads
from holdfast.planner.pipelines import Pipe, Sketch
from holdfast.planner.search_view import SearchView
from holdfast.planner.trading import traded
from holdfast.schedule.registry import priced_rule

ROUNDS = 8
MAX_PASSES = 6000
"""Micro-batches times stages played through for one sketch: longer pipelines get fewer rounds."""


def polished(view: SearchView, sketch: Sketch) -> Sketch | None:
    """A better sketch of the same teams, or None."""
    before = view.cost.step_time(sketch)
    starts = dict.fromkeys((sketch, aligned(view, sketch), traded(view, sketch)))
    best = min([tuned(view, start) for start in starts], key=view.cost.step_time)
    time = before if best == sketch else view.cost.step_time(best)
    if time > before or view.cost.refusal(best):
        best, time = sketch, before
    for _ in range(min(ROUNDS, MAX_PASSES // passes_of(sketch))):
        better = _improved(view, best)
        if better is None:
            break
        shared = tuned(view, view.shared(better.pipes, sketch.kind))
        found = min((better, shared), key=view.cost.step_time)
        now = view.cost.step_time(found)
        if now >= time * (1 - 1e-9) or view.cost.refusal(found):
            break
        best, time = found, now
    return best if time < before * (1 - 1e-9) else None


def passes_of(sketch: Sketch) -> int:
    """Micro-batches times stages of all bounds to be moved, of the longest pipeline."""
    counts = zip(sketch.pipes, sketch.counts, strict=True)
    return max(count * pipe.depth**2 for pipe, count in counts)


def aligned(view: SearchView, sketch: Sketch) -> Sketch:
    """Bounds as near to those of most pipelines as the slowest stage allows."""
    numbers: dict[tuple[int, ...], int] = {}
    for pipe in sketch.pipes:
        numbers[pipe.bounds] = numbers.get(pipe.bounds, 0) + 1
    usual = max(numbers, key=lambda bounds: numbers[bounds])
    pipes: list[Pipe] = []
    for pipe in sketch.pipes:
        if pipe.bounds != usual and len(pipe.bounds) == len(usual):
            paces = [view.cost.pace((team.tensor, team.shard, team.slow)) for team in pipe.teams]
            bounds = align_units(view.cost.work, paces, usual, _slowest(view, pipe))
            pipe = msgspec.structs.replace(pipe, bounds=bounds)
        pipes.append(pipe)
    return msgspec.structs.replace(sketch, pipes=tuple(pipes))


def tuned(view: SearchView, sketch: Sketch) -> Sketch:
    """Single micro-batches from the pipeline that ends last to the one that ends first."""
    counts = list(sketch.counts)
    cost, kind = view.cost, sketch.kind
    kinds = [cost.kind_of(pipe) for pipe in sketch.pipes]
    different = len(dict.fromkeys(kinds))
    for _ in range(2 * different if different > 1 else 0):
        times = [cost.compute_time(k, m, kind) for k, m in zip(kinds, counts, strict=True)]
        slowest = max(range(len(counts)), key=lambda n: (times[n], -n))
        more = {
            (k, m): cost.compute_time(k, m + 1, kind)
            for k, m in dict.fromkeys(zip(kinds, counts, strict=True))
        }
        others = [n for n in range(len(counts)) if n != slowest]
        taker = min(others, key=lambda n: (more[kinds[n], counts[n]], n))
        alike = sum(time >= times[slowest] * (1 - 1e-12) for time in times)
        if more[kinds[taker], counts[taker]] >= times[slowest] * (1 - 1e-9) or alike > 4:
            break
        counts[slowest] -= 1
        counts[taker] += 1
    return msgspec.structs.replace(sketch, counts=tuple(counts))


def _improved(view: SearchView, sketch: Sketch) -> Sketch | None:
    """The pipelines of the kind that ends last, each with one bound moved."""
    cost, kind = view.cost, sketch.kind
    kinds = [cost.kind_of(pipe) for pipe in sketch.pipes]
    ends = [cost.compute_time(k, m, kind) for k, m in zip(kinds, sketch.counts, strict=True)]
    last = max(range(len(ends)), key=lambda n: (ends[n], -n))
    if sum(k == kinds[last] for k in kinds) > len(kinds) // 2 > 1:
        return None  # most pipelines are like that: this is no exception to be repaired
    count = sketch.counts[last]
    pace = _slowest(view, sketch.pipes[last])
    options = [
        (cost.compute_time(cost.kind_of(pipe), count, kind), pipe.bounds)
        for pipe in _neighbours(view, sketch.pipes[last], kind, count)
        if _slowest(view, pipe) <= pace * 1.01  # a slower stage costs every micro-batch
    ]
    if not options:
        return None
    time, bounds = min(options)
    if time >= ends[last] * (1 - 1e-9):
        return None
    pipes = [
        msgspec.structs.replace(pipe, bounds=bounds) if k == kinds[last] else pipe
        for pipe, k in zip(sketch.pipes, kinds, strict=True)
    ]
    return msgspec.structs.replace(sketch, pipes=tuple(pipes))


def _slowest(view: SearchView, pipe: Pipe) -> float:
    paces = [view.cost.pace((team.tensor, team.shard, team.slow)) for team in pipe.teams]
    return max(stage_loads(view.cost.work, paces, pipe.bounds))


def _neighbours(view: SearchView, pipe: Pipe, kind: str, count: int) -> Iterator[Pipe]:
    for at in range(1, pipe.depth):
        for step in (-1, 1):
            bounds = list(pipe.bounds)
            bounds[at] += step
            if bounds[at - 1] < bounds[at] < bounds[at + 1]:
                moved = msgspec.structs.replace(pipe, bounds=tuple(bounds))
                if _fits(view, moved, kind, count):
                    yield moved


def _fits(view: SearchView, pipe: Pipe, kind: str, count: int) -> bool:
    return all(
        view.cost.footprint.fits(
            pipe.bounds[k],
            pipe.bounds[k + 1],
            team.tensor,
            team.shard,
            priced_rule(kind).in_flight(pipe.depth, k, count),
        )
        for k, team in enumerate(pipe.teams)
    )
