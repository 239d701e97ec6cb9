"""What bench/overhead.py makes of what it measures."""

import pytest


@pytest.fixture(scope="module")
def overhead(load_bench):
    return load_bench("overhead")


def test_costs_are_per_step(overhead):
    first, last = overhead.Moment(1.0, 10.0, 1000), overhead.Moment(3.0, 14.0, 5000)
    cost = last.since(first, 4, disk_bytes=7.0)
    assert cost == overhead.Cost(0.5, 1.0, 1000.0, 7.0)


def test_ratios_are_those_of_rounds(overhead):
    def costs(*seconds):
        return [overhead.Cost(s, 2 * s, 0.0) for s in seconds]

    base = costs(*range(1, 8))
    shown, ratio, band = overhead.row(
        "x", costs(*(1.02 * n for n in range(1, 8))), base, costs(*(0.97 * n for n in range(1, 8)))
    )
    expected = pytest.approx(1.02 / 0.985)  # against the mean of both
    assert (ratio.median, ratio.high) == (expected, expected)
    assert band == pytest.approx(0.03)
    assert shown["CPU ratio"] == expected


def test_the_loopback_interface_counts(overhead):
    assert overhead.loopback_bytes() >= 0


def test_without_torchft_ours_is_measured_alone(overhead, monkeypatch, capsys):
    def fail(*args):
        raise overhead._torchft.NoPeer("it cannot be installed")

    monkeypatch.setattr(overhead._torchft, "steady", fail)
    assert overhead.measure_theirs("1M", None, 1) == {}
    assert "ours alone: it cannot be installed" in capsys.readouterr().out
