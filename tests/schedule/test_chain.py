"""Which parts of a plan are regular."""

from holdfast.plan.lanes import layout_of
from holdfast.plan.plan import Schedule
from holdfast.schedule.chain import as_chain
from support.small_plans import even_chain, rerouted, v_shaped


def test_a_chain_is_seen() -> None:
    layout = layout_of(even_chain(2, 4, "interleaved", virtual=3))
    chain = as_chain(layout, layout.parts[0])
    assert chain is not None
    assert (chain.lanes, chain.virtual) == ((0, 1), 3)
    assert chain.stages == (0, 1, 2, 3, 4, 5)
    assert chain.stages_of(1) == (1, 3, 5)


def test_irregular_parts_are_no_chains() -> None:
    for plan in (rerouted(3, 2, 2, Schedule()), v_shaped(2, 2)):
        layout = layout_of(plan)
        assert all(as_chain(layout, part) is None for part in layout.parts)
