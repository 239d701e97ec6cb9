"""Interleaved 1F1B: how it reads, and its closed form."""

from itertools import product

import pytest

from holdfast.plan.lanes import layout_of
from holdfast.plan.timeline import evaluate
from holdfast.schedule.chain import as_chain
from holdfast.schedule.interleaved import Interleaved
from support.small_plans import Triple, even_chain, per_stage

TRIPLES = [(1.0, 1.0, 1.0), (1.0, 0.5, 1.5), (2.0, 3.0, 1.0), (0.5, 1.0, 2.0)]


def test_interleaved_goes_round_by_round() -> None:
    layout = layout_of(even_chain(2, 2, "interleaved", virtual=2))
    chain = as_chain(layout, layout.parts[0])
    assert chain is not None
    assert Interleaved().chain_order(chain, 1) == [
        ("F", 1, 0),
        ("F", 1, 1),
        ("F", 3, 0),
        ("B", 3, 0),
        ("F", 3, 1),
        ("B", 3, 1),
        ("B", 1, 0),
        ("B", 1, 1),
    ]


@pytest.mark.parametrize("cost", TRIPLES)
def test_interleaved_takes_its_closed_form(cost: Triple) -> None:
    for depth, virtual, rounds in product(range(1, 7), (2, 3), (1, 2, 3)):
        total = rounds * depth
        plan = even_chain(depth, total, "interleaved", virtual)
        assert evaluate(plan, per_stage(*cost)).iteration_time == (
            total * virtual + depth - 1
        ) * sum(cost)
