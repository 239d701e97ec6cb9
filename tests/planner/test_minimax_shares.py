"""Shares are as good as trying all of them."""

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.build import minimax_split
from holdfast.planner.minimax_shares import (
    align_units,
    share_micro_batches,
    split_units,
    stage_loads,
)

values = st.sampled_from([0.0, 0.5, 1.0, 2.5, 7.0])
slopes = st.sampled_from([0.5, 1.0, 1.3, 3.0])


@settings(max_examples=200)
@given(st.lists(st.tuples(values, slopes), min_size=1, max_size=3), st.integers(1, 9))
def test_no_share_of_micro_batches_is_better(times, total):
    def longest(counts):
        return max(f + s * m for (f, s), m in zip(times, counts, strict=True) if m)

    counts = share_micro_batches(times, total)
    assert sum(counts) == total
    ways = [w for w in product(range(total + 1), repeat=len(times)) if sum(w) == total]
    assert longest(counts) == pytest.approx(min(longest(way) for way in ways))


def test_a_large_share_is_quick_and_even():
    counts = share_micro_batches([(3.0, 1.0)] * 1000 + [(3.0, 2.0)] * 24, 64_000)
    assert sum(counts) == 64_000
    assert max(counts[:1000]) - min(counts[:1000]) <= 1


costs = st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=8)


@settings(max_examples=200)
@given(costs, st.lists(st.sampled_from([1.0, 1.5, 2.0]), min_size=1, max_size=4))
def test_the_split_is_the_minimax_split(units, paces):
    if len(paces) > len(units):
        assert split_units(prefix_of(units), paces) is None
        return
    bounds = split_units(prefix_of(units), paces)
    assert bounds is not None
    known = [0, *(stop for _, stop in minimax_split(units, [1 / p for p in paces]))]
    mine, theirs = (max(stage_loads(prefix_of(units), paces, b)) for b in (bounds, known))
    assert mine == pytest.approx(theirs)


@settings(max_examples=150)
@given(costs, st.integers(1, 3), st.integers(1, 4))
def test_room_is_respected(units, depth, room):
    """No stage may hold more than `room` units."""
    if depth > len(units):
        return
    paces = [1.0] * depth
    bounds = split_units(prefix_of(units), paces, lambda k, first: min(first + room, len(units)))
    ways = [
        (0, *cuts, len(units))
        for cuts in combinations(range(1, len(units)), depth - 1)
        if all(b - a <= room for a, b in pairwise((0, *cuts, len(units))))
    ]
    assert (bounds is None) == (not ways)
    if bounds is not None:
        prefix = prefix_of(units)
        best = min(max(stage_loads(prefix, paces, way)) for way in ways)
        assert max(stage_loads(prefix, paces, bounds)) == pytest.approx(best)
        assert all(b - a <= room for a, b in pairwise(bounds))


def test_many_equal_units_are_split_without_trying_all_cuts():
    """A weak team at the end takes the last unit only, whatever the front has to take."""
    units = [0.0, *[1.0] * 40, 0.5]
    bounds = split_units(prefix_of(units), [0.3] * 8 + [3.3])
    assert bounds is not None
    assert bounds[-2:] == (41, 42)
    assert max(stage_loads(prefix_of(units), [0.3] * 8 + [3.3], bounds)) == pytest.approx(1.65)


@settings(max_examples=150)
@given(costs, st.lists(st.sampled_from([1.0, 1.5, 2.0]), min_size=1, max_size=4), st.data())
def test_aligned_bounds_keep_the_slowest_stage(units, paces, data):
    if len(paces) > len(units):
        return
    prefix = prefix_of(units)
    bounds = split_units(prefix, paces)
    cuts = st.lists(st.integers(1, len(units) - 1), min_size=len(paces) - 1, unique=True,
                    max_size=len(paces) - 1)  # fmt: skip
    like = (0, *sorted(data.draw(cuts)), len(units))
    bound = max(stage_loads(prefix, paces, bounds))
    aligned = align_units(prefix, paces, like, bound)
    assert all(a < b for a, b in pairwise(aligned))
    assert (aligned[0], aligned[-1]) == (0, len(units))
    if max(stage_loads(prefix, paces, like)) <= bound:
        assert aligned == like


def prefix_of(units):
    return [sum(units[:n]) for n in range(len(units) + 1)]
