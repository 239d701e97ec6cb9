"""Redundant copies: who holds what, and what they are good for."""

from holdfast.plan.check import check_plan
from holdfast.plan.copies import lost_slice, num_copies
from holdfast.plan.without_workers import without_workers
from holdfast.planner.strategies.redundant import add_copies, with_copies
from support.planning import PROFILE, small_plan, view_of


def test_every_slice_has_one_more_copy():
    plan = with_copies(small_plan(1, 3, 2))
    assert num_copies(plan) == 2
    check_plan(plan, PROFILE)


def test_a_single_replica_survives_a_loss():
    plan = small_plan(1, 3, 1)
    assert lost_slice(plan, ["n0.g1"])
    copied = with_copies(plan)
    assert not lost_slice(copied, ["n0.g1"])
    left, _ = without_workers(copied, ["n0.g1"])
    check_plan(left, PROFILE)


def test_one_stage_has_no_neighbour():
    assert list(add_copies(view_of(small_plan(2, 1, 1)))) == []
    assert len(list(add_copies(view_of(small_plan(2, 2, 1))))) == 1
