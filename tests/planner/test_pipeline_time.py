"""The fast timeline of one pipeline is the timeline."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.profile import Link, Profile
from holdfast.plan.timeline import evaluate
from holdfast.planner.pipeline_time import chain_time
from support.small_plans import chain_of

KINDS = ["gpipe", "1f1b", "zero-bubble"]
time = st.sampled_from([0.25, 0.5, 1.0, 1.7, 3.0])
triples = st.lists(st.tuples(time, time, time), min_size=1, max_size=5)


@settings(max_examples=150)
@given(triples, st.integers(1, 30), st.sampled_from(KINDS), st.sampled_from([0.0, 64.0, 8.0]))
def test_it_agrees_with_the_timeline(times, num_micro_batches, kind, bandwidth):
    """Also where messages wait for each other: at 8 one takes longer than most computations."""
    plan = chain_of(times, num_micro_batches, kind)
    link = Link(0.3, bandwidth) if bandwidth else Link()
    timeline = evaluate(plan, Profile(between_nodes=link))
    links = [(0.3, 16 / bandwidth)] * (len(times) - 1) if bandwidth else ()
    result = chain_time(kind, times, num_micro_batches, links, links)
    assert result.end == pytest.approx(timeline.iteration_time, rel=1e-12)
    for lane, (start, end) in enumerate(result.last):
        last = [s for s in timeline.spans(lane) if s.kind in ("B", "W")][-1]
        assert (start, end) == pytest.approx((last.start, last.end), rel=1e-12)


def test_rounds_that_are_alike_are_skipped_without_a_difference():
    """A thousand micro-batches more are a thousand times the slowest stage."""
    times = [(1.0, 1.2, 0.9), (1.1, 1.0, 1.0), (0.7, 0.9, 0.6)]
    links = [(0.05, 0.1), (0.02, 0.1)]
    few, many = (chain_time("zero-bubble", times, m, links, links).end for m in (50, 1050))
    assert many - few == pytest.approx(1000 * 3.1, rel=1e-12)
