"""Rounds have no conflicts, and nothing is left out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.transfer_rounds import in_rounds, move_rounds
from holdfast.plan.transition import Move

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


def test_moves_go_in_the_order_of_their_rounds():
    triples = [("a", "b", 1), ("a", "c", 5), ("b", "c", 2), ("a", "b", 1), ("c", "a", 3)]
    moves = [Move("w", ((0, n),), a, b, n) for a, b, n in triples]
    ordered = in_rounds(moves)
    assert sorted(map(str, ordered)) == sorted(map(str, moves))
    assert [(move.source, move.target) for move in ordered] == [
        ("a", "c"),
        ("c", "a"),
        ("a", "b"),
        ("a", "b"),
        ("b", "c"),
    ]
