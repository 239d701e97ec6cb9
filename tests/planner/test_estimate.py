"""Formulas that rank pipelines are near the timeline."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.estimate import estimate_line, pace_of
from holdfast.planner.pipeline_time import chain_time

KINDS = ["gpipe", "1f1b", "zero-bubble"]
stages = st.lists(st.sampled_from([0.8, 1.0, 1.3]), min_size=1, max_size=8)
EVEN = (1.0, 1.0, 1.0)


def timeline(kind, times, num_micro_batches, delay):
    links = [(0.0, hop) for hop in delay]
    return chain_time(kind, times, num_micro_batches, links, links).end


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 4, 8])
def test_even_pipelines_are_exact(kind, depth):
    times = [EVEN] * depth
    assert estimate_line(kind, times, 16)[0] == pytest.approx(timeline(kind, times, 16, []))


@settings(max_examples=150)
@given(stages, st.integers(0, 20), st.sampled_from(KINDS), st.sampled_from([0.0, 0.05, 0.2]))
def test_uneven_pipelines_are_near(weights, more, kind, hop):
    times = [(w, w, w) for w in weights]
    delay = [hop] * (len(times) - 1)
    num_micro_batches = len(times) + more
    true = timeline(kind, times, num_micro_batches, delay)
    time, pace = estimate_line(kind, times, num_micro_batches, delay)
    assert time == pytest.approx(true, rel=0.08)
    assert pace == pace_of(kind, times, delay)


@pytest.mark.parametrize(("hop", "slower"), [(0.1, False), (3.0, True)])
def test_long_messages_set_the_pace_of_a_split_backward(hop, slower):
    """Short ones hide behind the weights' part."""
    times, delay = [EVEN] * 4, [hop] * 3
    pace = pace_of("zero-bubble", times, delay)
    assert (pace > 3.0) == slower
    many, few = (timeline("zero-bubble", times, m, delay) for m in (400, 200))
    assert (many - few) / 200 == pytest.approx(pace, rel=0.02)
