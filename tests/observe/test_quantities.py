import pytest

from holdfast.observe.quantities import (
    count,
    format_bytes,
    format_numbers,
    format_share,
    format_span,
    format_time,
    nice_ticks,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (99.9 * 2**20, "99.9 MiB"),
        (500 * 2**30, "500 GiB"),
        (3 * 2**60, "3072 PiB"),
    ],
)
def test_bytes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("time", "unit", "text"),
    [(33.0, "", "33"), (28.5, "ms", "28.5 ms"), (1 / 3, "", "0.3333"), (12345.6, "s", "12346 s")],
)
def test_times(time, unit, text):
    assert format_time(time, unit) == text


def test_words():
    assert format_share(3 / 11) == "27.3 %"
    assert count(1, "micro-batch") == "1 micro-batch"
    assert count(2, "micro-batch") == "2 micro-batches"
    assert count(0, "stage") == "0 stages"
    assert format_span([8, 8], "per replica") == "8 per replica"
    assert format_span([5, 9, 7], "") == "5 to 9"


def test_numbers_as_ranges():
    assert format_numbers([5, 0, 2, 3, 4, 4]) == "0,2-5"
    assert format_numbers([]) == ""


@pytest.mark.parametrize("end", [0.003, 1, 7, 33, 42.5, 469, 1e6])
@pytest.mark.parametrize("most", [1, 3, 10, 14])
def test_ticks_are_round_few_and_start_at_zero(end, most):
    ticks = nice_ticks(end, most)
    assert ticks[0] == 0
    assert len(ticks) <= most + 1
    assert ticks[-1] <= end * (1 + 1e-9)
    step = ticks[1] if len(ticks) > 1 else 1.0
    assert f"{step:e}"[0] in "125"


def test_ticks_of_nothing():
    assert nice_ticks(0.0, 10) == [0.0]
