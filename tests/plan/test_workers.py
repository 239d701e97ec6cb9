"""Names of workers and lists of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.workers import (
    format_range,
    format_workers,
    node_of,
    parse_range,
    parse_worker,
    parse_workers,
    worker_grid,
    worker_name,
)

places = st.tuples(st.integers(0, 5), st.integers(0, 9))
names = st.lists(places.map(lambda place: worker_name(*place)), min_size=1, max_size=30)


def test_a_name_says_where() -> None:
    assert worker_name(3, 5) == "n3.g5"
    assert parse_worker("n3.g5") == (3, 5)
    assert node_of("n31.g5") == "n31"


@pytest.mark.parametrize("name", ["", "n3", "n3.g", "n3.g5 ", "3.5", "n-1.g0", "g5.n3", "n3.g5.t0"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(HoldfastError, match="is not a worker name"):
        parse_worker(name)


def test_nodes_are_filled_one_after_the_other() -> None:
    assert worker_grid(5, 2) == ("n0.g0", "n0.g1", "n1.g0", "n1.g1", "n2.g0")
    assert worker_grid(2, 8, first_node=4) == ("n4.g0", "n4.g1")


# Lists.


@given(names)
def test_a_list_survives_its_text(workers: list[str]) -> None:
    assert parse_workers(format_workers(workers)) == tuple(workers)


@given(names)
def test_text_is_not_longer_than_the_plain_list(workers: list[str]) -> None:
    assert len(format_workers(workers)) <= len(",".join(workers))


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        (worker_grid(98304, 8), "n0-12287.g0-7"),
        (worker_grid(12, 8), "n0.g0-7,n1.g0-3"),
        (("n0.g0", "n1.g0", "n2.g0"), "n0-2.g0"),
        (("n0.g1", "n0.g0"), "n0.g1,n0.g0"),
        (("n0.g0", "n0.g1", "n1.g0", "n1.g1", "n3.g0", "n3.g1"), "n0-1.g0-1,n3.g0-1"),
        (("n0.g0", "n0.g0"), "n0.g0,n0.g0"),
    ],
)
def test_lists_are_short(workers: tuple[str, ...], text: str) -> None:
    assert format_workers(workers) == text
    assert parse_workers(text) == workers


def test_spaces_are_allowed_between_blocks() -> None:
    assert parse_workers(" n0.g0 ,  n1.g0-1") == ("n0.g0", "n1.g0", "n1.g1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a block like"),
        ("n0.g0,", "is not a block like"),
        ("n0.g0;n1.g0", "is not a block like"),
        ("n3-1.g0", "'n3-1.g0' in worker list 'n3-1.g0' counts downwards"),
        ("n0.g0,n0.g7-0", "'n0.g7-0' in worker list"),
    ],
)
def test_bad_lists_are_refused(text: str, words: str) -> None:
    with pytest.raises(HoldfastError, match=words):
        parse_workers(text)


# Ranges.


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_range_survives_its_text(low: int, length: int) -> None:
    assert parse_range(format_range(low, low + length)) == (low, low + length)


def test_ranges() -> None:
    assert format_range(3, 3) == "3"
    assert parse_range(" 3 - 7 ") == (3, 7)
    with pytest.raises(HoldfastError, match="counts downwards: 7 > 3"):
        parse_range("7-3")
    for text in ("", "a", "3-", "-3", "3-4-5", "1.5"):
        with pytest.raises(HoldfastError, match="is not a number or a range"):
            parse_range(text)
