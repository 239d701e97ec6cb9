"""The limit is kept, and what is given up for it is said."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.units import TensorSpec, Unit
from holdfast.snapshot.arena import Arena
from holdfast.snapshot.limit import (
    DISK,
    PROTECTED,
    SINGLE,
    UNPROTECTED,
    Need,
    choose,
    free_bytes,
    node_bytes,
    plan_memory,
)
from holdfast.snapshot.share import plan_shares

PLAN = regular_plan(
    (Unit("u", (TensorSpec("w", (4096, 64)),)),), replicas=3, micro_batches=3, devices_per_node=1
)


def test_without_a_limit_nothing_is_given_up():
    fit, shares = plan_memory(PLAN, {"n0": 0})
    assert fit.level == PROTECTED
    assert fit.reason.startswith("nothing is given up")
    assert shares.layouts[0].rows


def test_levels_follow_in_order_as_memory_shrinks():
    levels = []
    for size in range(4_000_000, 0, -100_000):
        fit, shares = plan_memory(PLAN, dict.fromkeys(["n0", "n1", "n2"], size))
        assert fit.num_bytes <= size
        if fit.level not in levels:
            levels.append(fit.level)
        assert (shares is None) == (fit.level == DISK)
    assert levels == [PROTECTED, UNPROTECTED, SINGLE, DISK]


def test_the_reason_has_both_numbers():
    fit, shares = plan_memory(PLAN, {"n1": 2_500_000})
    assert fit.level == UNPROTECTED
    assert "protected needs" in fit.reason
    assert "on n1, 2500000 are allowed" in fit.reason
    assert not shares.layouts[0].rows


def test_one_version_needs_half():
    two, one = (node_bytes(plan_shares(PLAN, parity=False, num_slots=n)) for n in (2, 1))
    assert all(0.45 < one[node] / two[node] < 0.55 for node in one)


def test_what_is_planned_is_what_is_taken(tmp_path):
    shares = plan_shares(PLAN)
    taken = dict.fromkeys(["n0", "n1", "n2"], 0)
    for number, layout in enumerate((*shares.layouts, *shares.copies)):
        arena = Arena.create(str(number), layout, tmp_path)
        taken[layout.node] += os.fstat(arena.fd).st_size
        arena.close()
    assert taken == node_bytes(shares)


SIZES = st.dictionaries(st.sampled_from(["n0", "n1", "n2"]), st.integers(0, 100), min_size=1)


@given(needs=st.lists(SIZES, max_size=4), limits=SIZES)
def test_the_first_that_fits_everywhere_is_chosen(needs, limits):
    levels = [PROTECTED, UNPROTECTED, SINGLE, SINGLE]
    given_needs = [Need(level, sizes) for level, sizes in zip(levels, needs, strict=False)]
    fitting = [
        need
        for need in given_needs
        if all(size <= limits[node] for node, size in need.by_node.items() if node in limits)
    ]
    fit = choose([*given_needs, Need(DISK, {})], limits)
    assert fit.level == (fitting[0].level if fitting else DISK)


def test_nothing_that_fits_is_an_error():
    with pytest.raises(HoldfastError, match="do not fit: single needs 5 bytes on n0, 4 are"):
        choose([Need(SINGLE, {"n0": 5})], {"n0": 4})


def test_what_is_left_is_asked_of_the_system(tmp_path):
    assert 0 < free_bytes(tmp_path) < 2**60
