"""ZB-H1 takes its published time, and its formula is near the timeline of uneven pipelines."""

from itertools import product

import pytest

from holdfast.plan.timeline import evaluate
from holdfast.planner.pipeline_time import chain_time
from holdfast.schedule.rounds import num_left_over
from holdfast.schedule.zero_bubble import ZeroBubble
from support.small_plans import Triple, even_chain, per_stage

SPLITS = [(1.0, 1.0, 1.0), (2.0, 1.0, 0.5), (1.0, 3.0, 2.0), (2.0, 0.5, 4.0), (0.5, 1.0, 0.0)]


def zb_h1_time(depth: int, virtual: int, total: int, cost: Triple) -> float:
    """Even stages: weight gradients fill the waits, as far as the waits are long enough. A weight
    gradient saves no more than its own time, nor more than the wait for a forward or an input
    gradient that it fills.
    """
    forward, of_input, of_weights = cost
    filled = (min(total, depth) - 1) * min(cost)
    chain = (total * virtual + depth - 1) * (forward + of_input)
    return chain + total * virtual * of_weights - filled


@pytest.mark.parametrize("cost", SPLITS)
def test_even_stages_take_the_published_time(cost: Triple) -> None:
    for depth, virtual, total in product(range(1, 6), (1, 2, 3), range(1, 16)):
        if virtual > 1 and (total < depth or num_left_over(total, depth)):
            continue  # the form needs a micro-batch for every lane, the order filled rounds
        plan = even_chain(depth, total, "zero-bubble", virtual)
        expected = evaluate(plan, per_stage(*cost)).iteration_time
        assert zb_h1_time(depth, virtual, total, cost) == expected


@pytest.mark.parametrize(("hop", "slower"), [(0.1, False), (3.0, True)])
def test_long_messages_set_the_pace(hop: float, slower: bool) -> None:
    """Short ones hide behind the weights' part."""
    times, delay = [(1.0, 1.0, 1.0)] * 4, [hop] * 3
    links = [(0.0, hop)] * 3
    period = ZeroBubble().period(times, delay)
    assert (period > 3.0) == slower
    many, few = (chain_time("zero-bubble", times, m, links, links).end for m in (400, 200))
    assert (many - few) / 200 == pytest.approx(period, rel=0.02)
