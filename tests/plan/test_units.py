"""Units, tensors and the boxes workers hold of them."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.units import (
    Box,
    Split,
    TensorSpec,
    Unit,
    box_size,
    check_units,
    intersect,
    share,
    subtract,
)

ranges = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda r: (min(r), max(r)))


def boxes(dims: int) -> st.SearchStrategy[Box]:
    return st.tuples(*[ranges] * dims)


box_pairs = st.integers(1, 3).flatmap(lambda dims: st.tuples(boxes(dims), boxes(dims)))


def points(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(low, high) for low, high in box)))


@given(st.integers(0, 100), st.integers(1, 20))
def test_shares_are_contiguous_and_nearly_equal(total: int, degree: int) -> None:
    shares = [share(total, rank, degree) for rank in range(degree)]
    assert shares[0][0] == 0
    assert shares[-1][1] == total
    assert all(a[1] == b[0] for a, b in pairwise(shares))
    sizes = [high - low for low, high in shares]
    assert max(sizes) - min(sizes) <= 1


# Boxes.


@given(box_pairs)
def test_boxes_are_sets_of_points(pair: tuple[Box, Box]) -> None:
    a, b = pair
    common = intersect(a, b)
    assert box_size(a) == len(points(a))
    assert (points(common) if common else set()) == points(a) & points(b)


@given(box_pairs)
def test_what_is_left_is_disjoint_and_complete(pair: tuple[Box, Box]) -> None:
    a, b = pair
    left = subtract(a, b)
    covered = [point for piece in left for point in points(piece)]
    assert len(covered) == len(set(covered))
    assert set(covered) == points(a) - points(b)
    assert all(box_size(piece) for piece in left)


def test_a_scalar_is_one_point() -> None:
    assert box_size(()) == 1
    assert intersect((), ()) == ()
    assert subtract((), ()) == []


# What a worker holds.


def test_heads_go_to_ranks_as_evenly_as_they_can() -> None:
    wq = TensorSpec("wq", (64, 5), Split(0, 32))
    assert [wq.box(rank, 3) for rank in range(3)] == [
        ((0, 20), (0, 5)),
        ((20, 42), (0, 5)),
        ((42, 64), (0, 5)),
    ]


def test_followers_go_where_their_leaders_are() -> None:
    """8 key-value heads under 32: rank 0 of 3 has query heads 0-9, so key-value heads 0-2."""
    wk = TensorSpec("wk", (16, 5), Split(0, 8, 32))
    assert [wk.split.part_range(rank, 3) for rank in range(3)] == [(0, 3), (2, 6), (5, 8)]
    assert wk.box(1, 3) == ((4, 12), (0, 5))


def test_more_ranks_than_key_value_heads_share_them() -> None:
    wk = Split(0, 2, 8)
    assert [wk.part_range(rank, 4) for rank in range(4)] == [(0, 1), (0, 1), (1, 2), (1, 2)]
    assert wk.limit == 8
    assert Split(0, 6).limit == 6


def test_shards_cut_what_the_tensor_axis_left() -> None:
    wo = TensorSpec("wo", (6, 8), Split(1, 4))
    assert wo.box(1, 2, 2, 3) == ((4, 6), (4, 8))
    assert wo.box() == wo.whole() == ((0, 6), (0, 8))
    assert TensorSpec("norm", (5,)).box(1, 2, 1, 2) == ((2, 5),)
    assert TensorSpec("step", ()).box(0, 2, 1, 4) == ()


@settings(max_examples=150)
@given(
    parts=st.integers(1, 8),
    size=st.integers(1, 3),
    dim=st.integers(0, 1),
    tensor=st.integers(1, 8),
    shard=st.integers(1, 3),
)
def test_the_boxes_of_all_ranks_tile_the_tensor(
    parts: int, size: int, dim: int, tensor: int, shard: int
) -> None:
    shape = (parts * size, 4) if dim == 0 else (4, parts * size)
    spec = TensorSpec("w", shape, Split(dim, parts))
    held = [
        point
        for rank in range(tensor)
        for shard_rank in range(shard)
        for point in points(spec.box(rank, tensor, shard_rank, shard))
    ]
    assert len(held) == len(set(held)) == spec.num_elements


@settings(max_examples=100)
@given(parts=st.integers(1, 4), per_part=st.integers(1, 4), data=st.data())
def test_followers_cover_all_and_no_more_than_their_leaders_touch(
    parts: int, per_part: int, data: st.DataObject
) -> None:
    follower, leader = Split(0, parts, parts * per_part), Split(0, parts * per_part)
    tensor = data.draw(st.integers(1, follower.limit))
    for rank in range(tensor):
        low, high = follower.part_range(rank, tensor)
        first, stop = leader.part_range(rank, tensor)
        assert set(range(low, high)) == {head // per_part for head in range(first, stop)}


# Models that contradict themselves.


def unit(*tensors: TensorSpec, name: str = "a") -> Unit:
    return Unit(name, tensors)


def test_a_unit_knows_its_size() -> None:
    assert unit(TensorSpec("w", (3, 4)), TensorSpec("b", (5,))).num_parameters == 17
    assert Unit("empty").num_parameters == 0


def test_a_good_model_passes() -> None:
    tied = TensorSpec("embed.weight", (8, 2), Split(0, 8))
    check_units((unit(tied), unit(tied, TensorSpec("b.w", (2,)), name="b")))


BAD = {
    "the model has no units": (),
    "two units are called 'a'": (unit(), unit()),
    "differs from its first mention": (
        unit(TensorSpec("w", (2,))),
        unit(TensorSpec("w", (3,)), name="b"),
    ),
    "has shape \\(2, 0\\)": (unit(TensorSpec("w", (2, 0))),),
    "has 1 dimensions, its split names dimension 1": (unit(TensorSpec("w", (4,), Split(1, 2))),),
    "4 rows along dimension 0 do not divide into 3 parts": (
        unit(TensorSpec("w", (4,), Split(0, 3))),
    ),
    "do not divide into 0 parts": (unit(TensorSpec("w", (4,), Split(0, 0))),),
    "2 parts do not divide the 5 they follow": (unit(TensorSpec("w", (4,), Split(0, 2, 5))),),
}


@pytest.mark.parametrize("words", BAD)
def test_a_bad_model_is_refused(words: str) -> None:
    with pytest.raises(HoldfastError, match=words):
        check_units(BAD[words])
