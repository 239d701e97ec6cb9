"""Every byte of a loop's state is saved once, and survives the loss of any node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import PARITY, Version
from holdfast.snapshot.loop_shares import HeldBox, peer_copies, rank_name, share_loop
from holdfast.snapshot.manifest import assumed_manifest, survey

V = Version(3, 1)


def sharded(num_ranks, rows=10):
    """One tensor cut by rows, and something of its own, on every rank."""
    held = []
    for rank in range(num_ranks):
        low, high = rows * rank // num_ranks, rows * (rank + 1) // num_ranks
        own = rank_name(rank, "rest")
        held.append(
            [
                HeldBox("w", (rows, 3), "float32", ((low, high), (0, 3))),
                HeldBox(own, (50,), "uint8", ((0, 50),)),
            ]
        )
    return held


def replicated(num_ranks):
    return [[HeldBox("w", (40, 3), "bfloat16", ((0, 40), (0, 3)))] for _ in range(num_ranks)]


def status(shares, lost=""):
    layouts = [one for one in (*shares.layouts, *shares.copies) if one.node != lost]
    (found,) = survey(assumed_manifest(layout, V) for layout in layouts)
    return found


@given(
    num_ranks=st.integers(2, 6),
    num_nodes=st.integers(2, 3),
    make=st.sampled_from([sharded, replicated]),
)
def test_any_node_may_be_lost(num_ranks, num_nodes, make):
    nodes = [f"host{rank % num_nodes}" for rank in range(num_ranks)]
    shares = share_loop(make(num_ranks), nodes)
    assert status(shares).is_complete
    for layout in shares.layouts:
        assert status(shares, layout.node).is_complete


def test_what_all_hold_is_saved_once():
    shares = share_loop(replicated(4), ["a", "a", "a", "a"])
    entries = [e for layout in shares.layouts for e in layout.entries if e.kind != PARITY]
    assert sum(entry.num_bytes for entry in entries) == 40 * 3 * 2
    assert not shares.copies


def test_without_redundancy_a_lost_node_is_lost():
    shares = share_loop(sharded(4), ["a", "a", "b", "b"], redundancy=False)
    assert status(shares).is_complete
    assert not status(shares, "n1").is_complete


def test_copies_go_to_ranks_of_another_node():
    nodes = ["a", "a", "b", "b"]
    copies = peer_copies(share_loop(sharded(4), nodes), nodes)
    assert len(copies) == 4
    assert all(nodes[copy.source] != nodes[copy.target] for copy in copies)
    assert {copy.target for copy in copies} == {0, 1, 2, 3}


def test_ranks_must_agree_on_what_a_tensor_is():
    held = replicated(2)
    held[1] = [HeldBox("w", (41, 3), "bfloat16", ((0, 41), (0, 3)))]
    with pytest.raises(HoldfastError, match=r"w has shape \(41, 3\) .* \(40, 3\)"):
        share_loop(held, ["a", "a"])


def test_a_hole_is_refused():
    held = sharded(3)
    del held[1][0]
    with pytest.raises(HoldfastError, match="no rank holds"):
        share_loop(held, ["a", "a", "a"])


def test_another_number_of_ranks_is_another_layout():
    plans = {share_loop(sharded(n), ["a"] * n).layouts[0].plan for n in (2, 3, 4)}
    assert len(plans) == 3
