"""Exact minimax shares: micro-batches over pipelines, units over the stages of a pipeline.

Both make the longest time as short as it can be. Micro-batches may go anywhere, so filling up to
the level of the continuous optimum and dealing out the rest by a heap is exact. Units stay in
order, so for a given bound it is best to give every stage, from the first, as many as it can
take; the bound rises to the next value at which any stage could take one more. Where a single
unit is too much for a stage, which must not stay empty, a shorter front may avoid it: then all
cuts are tried if they are few, else the bound rises until the front takes more or that unit is
not too much. That is exact where units are alike but for the first and the last, which have to be
where they are.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf

MAX_TABLE = 64
"""Units times stages."""

Affine = tuple[float, float]
"""(fixed, slope): the time of m micro-batches is fixed + slope * m."""

Room = Callable[[int, int], int]
"""(stage, first): where the units that this stage can hold from there end; `first` for none."""


def share_micro_batches(times: Sequence[Affine], total: int) -> list[int]:
    """How many micro-batches every pipeline gets; ties go to the earlier one."""
    level = water_level(times, total)
    counts = [max(0, int((level - fixed) / slope + 1e-9)) for fixed, slope in times]
    counts = _trimmed(counts, total)
    queue = [(fixed + slope * (counts[n] + 1), n) for n, (fixed, slope) in enumerate(times)]
    heapify(queue)
    for _ in range(total - sum(counts)):
        _, n = heappop(queue)
        counts[n] += 1
        fixed, slope = times[n]
        heappush(queue, (fixed + slope * (counts[n] + 1), n))
    return counts


def water_level(times: Sequence[Affine], total: int) -> float:
    """The common end if micro-batches could be divided; pipelines with a later start get none."""
    used = sorted(times)
    while True:
        starts = rates = 0.0
        for fixed, slope in used:
            starts += fixed / slope
            rates += 1 / slope
        level = (total + starts) / rates
        if used[-1][0] <= level or len(used) == 1:
            return level
        used.pop()


def _trimmed(counts: list[int], total: int) -> list[int]:
    """Rounding may give one too many."""
    while sum(counts) > total:
        counts[counts.index(max(counts))] -= 1
    return counts


def split_units(
    prefix: Sequence[float], paces: Sequence[float], room: Room | None = None
) -> tuple[int, ...] | None:
    """Bounds that make the slowest stage fastest; None where nothing fits.

    `prefix[i]` is the work of the first i units, `paces[k]` the time stage k needs per work.
    """
    num_units = len(prefix) - 1
    if len(paces) > num_units:
        return None
    bound = prefix[-1] / sum([1 / pace for pace in paces])
    is_small = num_units * len(paces) <= MAX_TABLE
    while True:
        bounds, following = _fill(prefix, paces, room, bound, is_small)
        if bounds is not None:
            return _level(prefix, paces, room, bounds, bound)
        if following is None:
            return _by_table(prefix, paces, room) if is_small else None
        bound = following


def _fill(
    prefix: Sequence[float],
    paces: Sequence[float],
    room: Room | None,
    bound: float,
    is_small: bool,
) -> tuple[list[int] | None, float | None]:
    """Greedy bounds under a bound on the stage time; else the next bound worth trying, None for
    none.
    """
    num_units, depth = len(prefix) - 1, len(paces)
    bounds, first = [0], 0
    following: float | None = None
    limit = bound * (1 + 1e-9)
    for stage, pace in enumerate(paces):
        before = prefix[first]
        most = num_units - (depth - stage - 1)
        if room is not None:
            most = min(most, room(stage, first))
            if most == first:
                return None, None
        stop = bisect_right(prefix, before + bound / pace * (1 + 1e-12)) - 1
        stop = most if stop > most else stop if stop > first else first + 1
        least = (prefix[stop] - before) * pace
        if least > limit:
            return None, None if is_small else min(least, following or least)
        if stop < most:
            needed = (prefix[stop + 1] - before) * pace
            if following is None or needed < following:
                following = needed
        bounds.append(stop)
        first = stop
    return (bounds, None) if first == num_units else (None, following)


def _by_table(
    prefix: Sequence[float], paces: Sequence[float], room: Room | None
) -> tuple[int, ...] | None:
    """The same by dynamic programming over all cuts: for units too heavy for a greedy fill.

    A stage's own time rises and its room shrinks as it starts earlier, so the search for its
    first unit ends where one of them is too much.
    """
    num_units, depth = len(prefix) - 1, len(paces)
    best = [0.0] + [inf] * num_units
    cuts: list[list[int]] = []
    for stage, pace in enumerate(paces):
        row, cut = [inf] * (num_units + 1), [0] * (num_units + 1)
        for stop in range(stage + 1, num_units - (depth - stage - 1) + 1):
            for first in range(stop - 1, stage - 1, -1):
                own = (prefix[stop] - prefix[first]) * pace
                if own >= row[stop] or (room is not None and stop > room(stage, first)):
                    break
                if best[first] < row[stop]:
                    row[stop], cut[stop] = max(own, best[first]), first
        best = row
        cuts.append(cut)
    if best[num_units] == inf:
        return None
    bounds = [num_units]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]])
    return tuple(bounds[::-1])


def _level(
    prefix: Sequence[float],
    paces: Sequence[float],
    room: Room | None,
    bounds: list[int],
    bound: float,
) -> tuple[int, ...]:
    """Shift units to the back where the front is fuller than it needs to be: the greedy fill
    leaves all the room to the last stage.
    """
    for k in range(len(paces) - 1, 0, -1):
        while bounds[k] - bounds[k - 1] > 1:
            front = (prefix[bounds[k]] - prefix[bounds[k - 1]]) * paces[k - 1]
            back = (prefix[bounds[k + 1]] - prefix[bounds[k] - 1]) * paces[k]
            if back >= front or back > bound * (1 + 1e-9):
                break
            if room is not None and bounds[k + 1] > room(k, bounds[k] - 1):
                break
            bounds[k] -= 1
    return tuple(bounds)


def align_units(
    prefix: Sequence[float], paces: Sequence[float], like: Sequence[int], bound: float
) -> tuple[int, ...]:
    """Bounds as near as can be to those of another pipeline, with no stage above `bound`, which
    some split has to keep.
    """
    depth, limit = len(paces), bound * (1 + 1e-9)
    least = [len(prefix) - 1] * (depth + 1)
    for k in range(depth - 1, 0, -1):
        first = bisect_left(prefix, prefix[least[k + 1]] - limit / paces[k])
        least[k] = max(k, min(first, least[k + 1] - 1))
    bounds = [0]
    for k, pace in enumerate(paces[:-1]):
        most = bisect_right(prefix, prefix[bounds[-1]] + limit / pace) - 1
        wanted = max(like[k + 1], least[k + 1])
        bounds.append(max(bounds[-1] + 1, min(wanted, most, len(prefix) - (depth - k))))
    return (*bounds, len(prefix) - 1)


def stage_loads(
    prefix: Sequence[float], paces: Sequence[float], bounds: Sequence[int]
) -> list[float]:
    """The time of every stage."""
    return [
        (prefix[stop] - prefix[first]) * pace
        for (first, stop), pace in zip(pairwise(bounds), paces, strict=True)
    ]
