"""The closed form of GPipe is the timeline."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from holdfast.schedule.gpipe import GPipe
from support.small_plans import Triple, chain_of, delays

times = st.floats(0.125, 8.0)
triples = st.tuples(times, times, times)
latencies = st.lists(st.floats(0, 4), min_size=5, max_size=5)


@settings(max_examples=100)
@given(st.lists(triples, min_size=1, max_size=6), st.integers(1, 10), latencies)
def test_it_is_exact_for_any_stages_and_latencies(
    costs: list[Triple], total: int, delay: list[float]
) -> None:
    delay = delay[: len(costs) - 1]
    profile = Profile(links=delays(delay))
    expected, more = (
        evaluate(chain_of(costs, count, "gpipe"), profile).iteration_time
        for count in (total, total + 1)
    )
    # Relative: the two add the same numbers in another order.
    time, period = GPipe().chain_estimate(costs, total, delay)
    assert time == pytest.approx(expected, rel=1e-12)
    assert period == pytest.approx(more - expected, rel=1e-9)
