"""Every gradient element is summed exactly once over all that add to it, and counted once."""

from collections import Counter

from hypothesis import given, settings

from holdfast.plan.build import regular_plan
from holdfast.plan.exchanges import plan_exchanges
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from support.boxes import elements
from support.random_plans import make_units, plans


@settings(max_examples=60)
@given(plans)
def test_every_element_is_in_one_exchange_with_all_its_holders(plan: Plan) -> None:
    holders = HolderMap(plan)
    held = {
        (name, point): set(cell.holders)
        for name in holders.tensors
        for cell in holders.cells(name)
        for point in elements(cell.box)
    }
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for unit, exchanges in enumerate(plan_exchanges(plan)):
        for exchange in exchanges:
            assert exchange.unit == unit
            for piece in exchange.pieces:
                assert not set(piece.silent) - set(exchange.members)
                for point in elements(piece.box):
                    seen[piece.tensor, point] += 1
                    assert held[piece.tensor, point] == set(exchange.members)
    assert seen == Counter(dict.fromkeys(held, 1))


@settings(max_examples=60)
@given(plans)
def test_an_unsplit_tensor_is_added_once_per_stage(plan: Plan) -> None:
    for exchanges in plan_exchanges(plan):
        for exchange in exchanges:
            for piece in exchange.pieces:
                if piece.tensor.endswith(".norm"):
                    unit = exchange.unit
                    stages = [s for s in plan.stages if s.first <= unit < s.stop]
                    adding = [w for w in exchange.members if w not in piece.silent]
                    per_stage = [sum(w in stage.workers for w in adding) for stage in stages]
                    assert per_stage == [1] * len(stages)


def test_a_plain_plan_needs_one_exchange_per_unit() -> None:
    plan = regular_plan(make_units(4), replicas=3, stages=2, micro_batches=6)
    for unit, exchanges in enumerate(plan_exchanges(plan)):
        (exchange,) = exchanges
        assert (
            exchange.members
            == (("n0.g0", "n0.g2", "n0.g4"), ("n0.g1", "n0.g3", "n0.g5"))[unit // 2]
        )
        assert len(exchange.pieces) == 4


def test_tensor_ranks_meet_only_over_what_they_share() -> None:
    plan = regular_plan(make_units(1), replicas=2, tensor=2, micro_batches=2)
    (exchanges,) = plan_exchanges(plan)
    names = {e.members: [piece.tensor.split(".")[-1] for piece in e.pieces] for e in exchanges}
    # 3 key-value heads over 2 ranks with 3 query heads each: both hold the middle one.
    assert names == {
        ("n0.g0", "n0.g2"): ["wq", "wk", "wo"],
        ("n0.g1", "n0.g3"): ["wq", "wk", "wo"],
        ("n0.g0", "n0.g1", "n0.g2", "n0.g3"): ["wk", "norm"],
    }


def test_tied_tensors_join_both_ends() -> None:
    plan = regular_plan(make_units(4, tied=True), replicas=2, stages=2, micro_batches=4)
    exchanges = plan_exchanges(plan)
    tied = [e for e in exchanges[0] if any(p.tensor == "embed.weight" for p in e.pieces)]
    assert [e.members for e in tied] == [("n0.g0", "n0.g1", "n0.g2", "n0.g3")]
    assert not any(p.tensor == "embed.weight" for e in exchanges[3] for p in e.pieces)
