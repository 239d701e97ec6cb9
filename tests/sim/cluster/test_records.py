"""What a run leaves behind."""

from holdfast.observe.goodput import Budget
from holdfast.sim.cluster.records import Result, ThroughputSpan


def test_stalls_are_the_spans_without_training():
    spans = (
        ThroughputSpan(0, 10, 1.0),
        ThroughputSpan(10, 14, 0.0),
        ThroughputSpan(14, 20, 0.5),
        ThroughputSpan(20, 21, 0.0),
    )
    budget = Budget(21, 13.0, {"detection": 5.0, "missing devices": 3.0})
    result = Result(
        policy="p", budget=budget, journal=(), spans=spans, num_failures=2, strategies={}
    )
    assert result.stalls_ms == (4, 1)
    assert result.goodput == 13 / 21
