"""The formula against chance itself, and the interval it gives."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.snapshot.share import plan_shares
from holdfast.snapshot.survival import (
    NodeFailures,
    advise,
    columns_of,
    format_span,
    safe_interval_s,
    survival,
)
from support.random_plans import make_units

DAY_S = 86400.0


def layouts_of(shares):
    return (*shares.layouts, *shares.copies)


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize("shape", [0.7, 1.0, 1.5])
def test_it_is_what_happens(parity, shape):
    """Against 20,000 clusters whose nodes fail by the dice."""
    dice = random.Random(3)
    failures, columns, t_s = NodeFailures(100.0, shape), [4, 4, 2], 12.0
    whole, tries = 0, 20_000
    for _ in range(tries):
        losses = [
            sum(dice.weibullvariate(100.0, shape) < t_s for _ in range(size)) for size in columns
        ]
        whole += all(loss <= (1 if parity else 0) for loss in losses)
    assert survival(t_s, failures, columns, parity=parity) == pytest.approx(
        whole / tries, abs=4 * (0.25 / tries) ** 0.5
    )


@given(
    mean_s=st.floats(1.0, 1e9),
    shape=st.floats(0.3, 3.0),
    columns=st.lists(st.integers(1, 8), min_size=1, max_size=20),
    parity=st.booleans(),
    threshold=st.floats(0.01, 0.999),
)
def test_the_interval_is_where_survival_meets_the_threshold(
    mean_s, shape, columns, parity, threshold
):
    failures = NodeFailures(mean_s, shape)
    t_s = safe_interval_s(failures, columns, parity=parity, threshold=threshold)
    assert survival(t_s, failures, columns, parity=parity) >= threshold * (1 - 1e-9)
    later = survival(1.001 * t_s, failures, columns, parity=parity)
    assert later < threshold or t_s == 0


def test_parity_stretches_the_interval_as_published():
    """Half a day becomes more than two weeks (REFT: 16.22 days) for a cluster of that kind."""
    columns = [6] * 1
    bare = safe_interval_s(NodeFailures(DAY_S * 28.5), columns, parity=False)
    assert bare == pytest.approx(0.5 * DAY_S, rel=0.01)
    kept = safe_interval_s(NodeFailures(DAY_S * 28.5), columns, parity=True)
    assert 5 < kept / bare < 50


def test_more_nodes_shorten_it():
    failures = NodeFailures(1e6)
    spans = [safe_interval_s(failures, [4] * n, parity=True) for n in (1, 10, 100, 12_288)]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] > 0


def test_a_node_alone_has_no_parity():
    failures = NodeFailures(1e6)
    assert safe_interval_s(failures, [1, 1], parity=True) == safe_interval_s(
        failures, [1, 1], parity=False
    )


def test_the_advice_shows_what_it_rests_on():
    advice = advise(NodeFailures(30 * DAY_S), [8] * 4, parity=True)
    assert advice.interval_s > 0
    assert "32 nodes in 4 columns, one failure per node in 30 days" in advice.reason
    assert "with parity with probability 0.9" in advice.reason
    assert "without)" in advice.reason
    assert "without parity" in advise(NodeFailures(30 * DAY_S), [8], parity=False).reason


@pytest.mark.parametrize(
    ("failures", "threshold"),
    [(NodeFailures(0.0), 0.9), (NodeFailures(1.0, 0.0), 0.9), (NodeFailures(1.0), 1)],
)
def test_nonsense_is_refused(failures, threshold):
    with pytest.raises(HoldfastError):
        safe_interval_s(failures, [2], parity=True, threshold=threshold)


def test_spans_read_well():
    spans = [5.0, 90.0, 7200.0, 16.22 * DAY_S]
    assert [format_span(s) for s in spans] == ["5 s", "1.5 min", "2 h", "16.2 days"]


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        ({"replicas": 3}, [3]),
        ({"replicas": 2, "stages": 2}, [2, 2]),
        ({"stages": 3}, [2, 2, 2]),
        ({}, [1]),
    ],
)
def test_columns_are_read_from_the_shares(degrees, expected):
    plan = regular_plan(make_units(3), micro_batches=6, devices_per_node=1, **degrees)
    assert columns_of(layouts_of(plan_shares(plan))) == expected


def test_without_protection_every_node_counts_alone():
    plan = regular_plan(make_units(3), replicas=3, micro_batches=6, devices_per_node=1)
    assert columns_of(layouts_of(plan_shares(plan, parity=False))) == [1, 1, 1]
