"""Rounds have no conflicts, and nothing is left out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.holders import HolderMap
from holdfast.plan.transfer_rounds import colour, move_rounds, reduction_rounds
from holdfast.plan.transition import Move
from support.planning import small_plan
from support.random_plans import irregular_plans

NAMES = [f"n0.g{n}" for n in range(6)]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(1, 9))))
def test_a_worker_sends_and_receives_once_per_round(triples):
    moves = [Move("w", ((0, n),), a, b, n) for a, b, n in triples if a != b]
    rounds = move_rounds(moves)
    for flows in rounds:
        assert len({flow.source for flow in flows}) == len(flows)
        assert len({flow.target for flow in flows}) == len(flows)
    assert sum(flow.num_bytes for flows in rounds for flow in flows) == sum(
        move.num_bytes for move in moves
    )


@settings(max_examples=60)
@given(irregular_plans())
def test_units_reduced_together_share_no_worker(plan):
    rounds = reduction_rounds(plan)
    assert sorted(unit for units in rounds for unit in units) == list(range(len(plan.units)))
    stages = HolderMap(plan).bucket_stages
    for units in rounds:
        seen: set[str] = set()
        for unit in units:
            workers = {w for number in stages[unit] for w in plan.stages[number].workers}
            assert not seen & workers
            seen |= workers


def test_a_regular_plan_reduces_one_unit_of_every_stage_at_a_time():
    rounds = reduction_rounds(small_plan(2, 4, 1))
    assert len(rounds) in (2, 3)  # two units a stage; the tied one spans the first and the last


def test_a_ring_of_odd_length_needs_three_colours():
    conflicts = {n: [(n + 1) % 5, (n - 1) % 5] for n in range(5)}
    colours = colour(conflicts)
    assert all(colours[n] != colours[m] for n, row in conflicts.items() for m in row)
    assert len(set(colours.values())) == 3
