"""Shuffles by number: every place once, the same from everywhere, and spread out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from holdfast.data.by_number import Permutation, stream
from holdfast.errors import InternalError


@given(st.integers(1, 10**15), st.integers(0, 1 << 40), st.data())
def test_many_places_at_once_are_the_same(size, seed, data):
    permutation = Permutation(size, stream(seed, "p"))
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    expected = [permutation(place) for place in places]
    assert permutation.of(np.array(places, dtype=np.int64)).tolist() == expected


@pytest.mark.slow
def test_a_million_documents_are_shuffled_twice_the_same():
    size = 1_000_000
    orders = [Permutation(size, stream(7, "p")).of(np.arange(size)) for _ in range(2)]
    assert np.array_equal(*orders)
    assert np.array_equal(np.sort(orders[0]), np.arange(size))
    other = Permutation(size, stream(8, "p")).of(np.arange(size))
    assert np.count_nonzero(other == orders[0]) < 20


@pytest.mark.slow
@given(st.integers(1, 2000), st.integers(0, 1 << 40))
def test_a_permutation_takes_every_place_once(size, seed):
    permutation = Permutation(size, stream(seed, "p"))
    assert sorted(permutation(place) for place in range(size)) == list(range(size))


def test_a_permutation_of_many_is_spread_out():
    permutation = Permutation(10**12, stream(1, "p"))
    places = [permutation(place) for place in range(4000)]
    assert len(set(places)) == 4000
    assert stats.kstest([place / 10**12 for place in places], "uniform").pvalue > 1e-4


def test_permutations_of_other_streams_differ():
    first, second = (Permutation(100, stream(seed, "p")) for seed in (1, 2))
    assert [first(i) for i in range(100)] != [second(i) for i in range(100)]


def test_every_order_of_three_comes_up():
    orders = {}
    for seed in range(600):
        permutation = Permutation(3, stream(seed, "p"))
        order = tuple(permutation(place) for place in range(3))
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == 6
    assert stats.chisquare(list(orders.values())).pvalue > 1e-4


@pytest.mark.parametrize("place", [-1, 5])
def test_a_place_outside_is_a_bug(place):
    with pytest.raises(InternalError, match=f"place {place} is not in a shuffle of 5"):
        Permutation(5, stream(0))(place)
