"""The interval that a limit on the cost leads to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.snapshot.interval import LONGEST, SEEN_VERSIONS, IntervalRule

STEP_S = 0.1


def rule(least=1, limit=0.01, steps=20):
    found = IntervalRule(least, limit)
    for _ in range(steps):
        found.stepped(STEP_S)
    return found


def feed(found, waits):
    """Every worker's wait, for as many versions as it takes; the choices made."""
    told = [
        found.waited(worker, seconds)
        for _ in range(SEEN_VERSIONS)
        for worker, seconds in waits.items()
    ]
    return [choice for choice in told if choice is not None]


def test_what_costs_nothing_is_done_every_step():
    assert feed(rule(), {"a": 0.0, "b": 0.0005}) == []


def test_the_interval_is_doubled_until_it_fits():
    found = rule()
    (choice,) = feed(found, {"a": 0.0001, "b": 0.0025})
    assert (choice.every, found.every) == (4, 4)
    assert choice.reason == (
        "a snapshot every 4 steps, before it was every 1: b waits 2.5 ms for one and a step takes "
        "100.0 ms, with a limit of 1.0%"
    )


def test_one_slow_version_decides_nothing():
    found = rule()
    assert [found.waited("a", 0.05 if n == 3 else 0.0) for n in range(20)] == [None] * 20


def test_it_is_shortened_when_every_worker_agrees():
    found = rule()
    feed(found, {"a": 0.0, "b": 0.0039})
    assert found.every == 4
    assert feed(found, {"a": 0.0, "b": 0.0039}) == [], "b still needs it"
    assert [choice.every for choice in feed(found, {"a": 0.0, "b": 0.0})][-1] < 4


def test_it_does_not_swing():
    """A cost just below the limit of half the interval is no reason to go back."""
    found = rule()
    feed(found, {"a": 0.0015})
    assert found.every == 2
    assert feed(found, {"a": 0.0009}) == []


def test_nothing_is_known_before_there_were_steps_and_after_a_change():
    assert feed(rule(steps=0), {"a": 1.0}) == []
    found = rule()
    for _ in range(SEEN_VERSIONS - 1):
        found.waited("a", 1.0)
    found.forget()
    assert found.waited("a", 1.0) is None


@given(
    waits=st.dictionaries(st.sampled_from("abc"), st.floats(0, 10), min_size=1),
    least=st.integers(1, 7),
)
def test_what_is_chosen_fits_and_half_of_it_does_not(waits, least):
    found = rule(least)
    for _ in range(5):
        feed(found, waits)
    most = max(waits.values())
    assert found.every % least == 0
    fits = most <= 0.01 * found.every * STEP_S * (1 + 1e-9)
    assert fits or found.every >= LONGEST * least
    if found.every > least:
        assert most > 0.01 * (found.every // 2) * STEP_S * (1 - 1e-9)


@pytest.mark.parametrize("least", [1, 3])
def test_intervals_have_versions_in_common(least):
    found = rule(least)
    for choice in feed(found, {"a": 0.02}):
        assert choice.every % least == 0
        assert (choice.every // least).bit_count() == 1
