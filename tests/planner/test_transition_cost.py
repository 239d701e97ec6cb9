"""Transitions made ready: rounds, groups, time, and the refusal to lose anything."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.transition import replay
from holdfast.planner.transition_cost import plan_movement
from support.planning import PROFILE, small_plan


def test_no_change_takes_no_time():
    plan = small_plan(2, 2, 2)
    movement = plan_movement(plan, plan, (), PROFILE)
    assert movement.time == 0
    assert movement.rounds == ()


def test_the_longest_flow_of_every_round_counts():
    old, new = small_plan(2, 2, 1), small_plan(3, 2, 1, per_replica=4)
    movement = plan_movement(old, new, (), PROFILE)
    replay(old, new, movement.transition)
    longest = max(flow.num_bytes for flows in movement.rounds for flow in flows)
    assert movement.moving >= longest / PROFILE.between_nodes.bandwidth
    assert movement.regrouping > 0
    assert movement.transition.kept_groups


def test_the_last_copy_is_never_lost():
    plan = small_plan(1, 2, 1)
    new = small_plan(1, 1, 1)
    with pytest.raises(HoldfastError, match="last copy is gone"):
        plan_movement(plan, new, ["n0.g1"], PROFILE)
