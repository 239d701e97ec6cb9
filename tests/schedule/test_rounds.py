"""Orders in rounds take the time that their formula says."""

from itertools import product

import pytest

from holdfast.plan.lanes import layout_of
from holdfast.plan.timeline import evaluate
from holdfast.schedule.chain import as_chain
from holdfast.schedule.rounds import num_left_over, rounds_order
from support.small_plans import even_chain, per_stage


def rounds_time(depth: int, virtual: int, total: int, stage: float) -> float:
    """`virtual` even stages per lane. With fewer micro-batches than lanes, every round but the last
    waits for its first micro-batch.
    """
    return ((virtual - 1) * max(total, depth) + total + depth - 1) * stage


@pytest.mark.parametrize("kind", ["interleaved", "gpipe"])
def test_rounds_are_exact(kind: str) -> None:
    for depth, virtual, total in product(range(1, 6), (1, 2, 3), range(1, 16)):
        if kind == "interleaved" and num_left_over(total, depth):
            continue
        plan = even_chain(depth, total, kind, virtual)
        expected = evaluate(plan, per_stage(1.0, 0.5, 1.5)).iteration_time
        assert rounds_time(depth, virtual, total, 3.0) == expected


def test_rounds_that_do_not_fill_have_no_order() -> None:
    layout = layout_of(even_chain(4, 9, "interleaved", virtual=2))
    chain = as_chain(layout, layout.parts[0])
    assert chain is not None
    assert num_left_over(9, 4) == 1
    assert rounds_order(chain, 0, warm_up_per_rank=2, split_backward=False) is None
