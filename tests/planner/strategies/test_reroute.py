"""Routes that cross between replicas."""

import pytest

from holdfast.plan.check import check_shape
from holdfast.plan.without_workers import without_workers
from holdfast.planner.crossing_routes import mixed_time, whole_plan
from holdfast.planner.strategies.reroute import MAX_JOINED, migrate, reroute, spare_room
from support.planning import small_plan, view_of


def test_a_lost_stage_is_passed_elsewhere_and_nothing_else_changes():
    view = view_of(small_plan(3, 2, 2), ["n0.g1"])
    (proposal,) = reroute(view)
    plan = whole_plan(view, proposal)
    check_shape(plan)
    assert "r0.s0" not in plan.stage_by_name
    assert {stage.workers for stage in plan.stages} < {s.workers for s in view.plan.stages}
    assert plan.schedule.extra_in_flight == 2  # memory is not limited here


def test_the_bound_is_below_the_time():
    for dead in ("n0.g0", "n0.g2"):
        view = view_of(small_plan(4, 2, 2), [dead])
        for proposal in (*reroute(view), *migrate(view)):
            time = mixed_time(view, proposal.sketch, proposal.plan)
            assert proposal.bound <= time * (1 + 1e-9)


def test_only_a_few_replicas_are_joined():
    view = view_of(small_plan(20, 2, 1), ["n0.g0"])
    (proposal,) = reroute(view)
    assert len(proposal.plan.replicas) <= MAX_JOINED
    assert len(proposal.sketch.pipes) + len(proposal.plan.replicas) == 20


def test_room_in_flight_is_what_memory_allows():
    plan = small_plan(2, 2, 2)
    view = view_of(plan)
    used = max(
        view.cost.footprint.device_bytes(a, b, 2, 1, k) for a, b, k in ((0, 4, 2), (4, 8, 1))
    )
    act = view.cost.footprint.activation_bytes(0, 4, 2, 1, 1)
    tight = view_of(small_plan(2, 2, 2, limit=used + act))
    assert spare_room(view, view.roster.pipes, "1f1b") == 2
    assert spare_room(tight, tight.roster.pipes, "1f1b") == 1


def test_a_stage_lost_everywhere_is_refused():
    plan = small_plan(3, 2, 1)
    view = view_of(plan, ["n0.g0", "n0.g2", "n1.g0"])
    (proposal,) = reroute(view)
    assert proposal.refusal == "no replica is whole"


def test_a_wide_team_with_one_loss_is_not_worth_a_detour():
    view = view_of(small_plan(3, 2, 4), ["n0.g1"])
    (proposal,) = reroute(view)
    assert "migrate gives more" in proposal.refusal


def test_crossing_routes_can_cross_again():
    plan, _ = without_workers(small_plan(3, 2, 1), ["n0.g0"])
    view = view_of(plan, ["n0.g3"])
    (proposal,) = reroute(view)
    check_shape(proposal.plan)


@pytest.mark.parametrize("slow", [1.5, 3.0])
def test_weak_stages_get_their_share(slow):
    view = view_of(small_plan(2, 2, 1, per_replica=12), [], {"n0.g0": slow})
    (proposal,) = migrate(view)
    check_shape(proposal.plan)
    load = {name: len(n) for name, n in proposal.plan.micro_batches_by_stage.items()}
    assert load["r0.s1"] == load["r1.s1"] == 12
    assert load["r0.s0"] + load["r1.s0"] == 24
    assert load["r0.s0"] == pytest.approx(24 / (1 + slow), abs=1)
