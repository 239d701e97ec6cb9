"""Costs as data: what a profile says, and what it comes to on a plan."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.lanes import layout_of
from holdfast.plan.plan import Hop, Plan, Schedule, Stage, whole_route
from holdfast.plan.profile import (
    LayoutCosts,
    Link,
    Profile,
    UnitCost,
    format_profile,
    link_between,
    message_link,
    parse_profile,
    resolve,
    slow_workers,
    tensor_factor,
)
from holdfast.plan.units import Unit
from support.random_plans import plans
from support.small_plans import blocks, even_chain, profiles_for


def costs_of(plan: Plan, profile: Profile) -> LayoutCosts:
    return resolve(layout_of(plan), profile)


# As text.


@pytest.mark.slow
@settings(max_examples=60)
@given(plans.flatmap(profiles_for))
def test_text_keeps_everything(profile: Profile) -> None:
    assert parse_profile(format_profile(profile)) == profile


def test_a_person_can_write_one() -> None:
    profile = parse_profile(
        '{"source": "measured", "tensor": {"8": 1.0, "4": 1.9}, "slow": {"n0": 2}}'
    )
    assert profile.tensor == {8: 1.0, 4: 1.9}
    assert profile.slow == {"n0": 2.0}
    assert profile.source == "measured"


@pytest.mark.parametrize("text", ["", "[]", '{"agree": "soon"}', '{"worker": {"forward": 1}}'])
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(HoldfastError, match="not a profile"):
        parse_profile(text)


# Costs of stages.


def test_a_stage_costs_the_sum_of_its_units() -> None:
    units = [Unit(f"u{n}", (), n + 1.0, 10.0 * (n + 1), 100.0 * (n + 1)) for n in range(4)]
    costs = costs_of(regular_plan(units, stages=2), Profile(unit={"u3": UnitCost(0.5, 0.25, 2.0)}))
    assert costs.stage == (UnitCost(3.0, 30.0, 300.0), UnitCost(3.5, 30.25, 302.0))
    assert costs.duration(("F", 0, 0)) == 3.0
    assert costs.duration(("I", 0, 0)) == 30.0
    assert costs.duration(("W", 0, 0)) == 300.0
    assert costs.duration(("B", 0, 0)) == 330.0


def test_recomputing_comes_before_the_input_gradient() -> None:
    plan = regular_plan(blocks(1), schedule=Schedule(recompute=True))
    assert costs_of(plan, Profile()).stage == (UnitCost(1.0, 2.0, 1.0),)


def test_the_tensor_degree_scales() -> None:
    plan = regular_plan(blocks(2), stages=2, tensor=4)
    assert costs_of(plan, Profile(tensor={4: 0.375})).stage[0] == UnitCost(0.375, 0.375, 0.375)
    assert costs_of(plan, Profile(tensor={1: 1.0})).stage[0] == UnitCost(0.25, 0.25, 0.25)


def test_a_worker_cost_is_divided_over_its_stages() -> None:
    plan = even_chain(2, 2, "interleaved", virtual=4)
    costs = costs_of(plan, Profile(worker=UnitCost(4.0, 8.0, 2.0), tensor={1: 9.0}))
    assert costs.stage == (UnitCost(1.0, 2.0, 0.5),) * 8


def test_the_slowest_worker_of_a_stage_counts() -> None:
    plan = regular_plan(blocks(2), stages=2, tensor=2)
    costs = costs_of(plan, Profile(slow={"n0.g1": 3.0}))
    assert costs.stage == (UnitCost(1.5, 1.5, 1.5), UnitCost(0.5, 0.5, 0.5))


def test_heavy_micro_batches_take_longer() -> None:
    costs = costs_of(even_chain(2, 3), Profile(workload=(1.0, 2.0, 0.5)))
    assert [costs.duration(("B", 1, n)) for n in range(3)] == [2.0, 4.0, 1.0]
    with pytest.raises(HoldfastError, match="workloads of 2 micro-batches, the plan 3"):
        costs_of(even_chain(2, 3), Profile(workload=(1.0, 2.0)))


def test_a_leg_through_a_part_of_a_stage_costs_just_its_units() -> None:
    """Forward and backward are not in the same proportion on every unit."""
    units = (
        Unit("a", (), 1.0, 0.0, 8.0),
        Unit("b", (), 4.0, 2.0, 0.5),
        Unit("c", (), 2.0, 2.0, 2.0),
    )
    stages = (Stage(0, 0, 0, 3, ("n0.g0",)), Stage(1, 0, 0, 3, ("n0.g1",)))
    crossing = (Hop("r0.s0", 0, 1), Hop("r1.s0", 1, 3))
    plan = Plan(units, stages, (whole_route(stages[:1]), crossing))
    profile = Profile(unit={"c": UnitCost(1.0, 1.0, 1.0)}, slow={"r1.s0": 2.0})
    costs = costs_of(plan, profile)
    assert costs.duration(("F", 0, 0)) == 1.0 + 4.0 + 1.0
    assert costs.duration(("F", 0, 1)) == 1.0
    assert costs.duration(("B", 0, 1)) == 8.0
    assert costs.duration(("F", 1, 1)) == 2 * (4.0 + 1.0)
    assert costs.duration(("I", 1, 1)) == 2 * (2.0 + 1.0)


def test_a_worker_cost_goes_by_the_number_of_units_in_a_leg() -> None:
    stages = (Stage(0, 0, 0, 4, ("n0.g0",)), Stage(1, 0, 0, 4, ("n0.g1",)))
    crossing = (Hop("r0.s0", 0, 1), Hop("r1.s0", 1, 4))
    costs = costs_of(Plan(blocks(4), stages, (crossing,)), Profile(worker=UnitCost(4.0, 4.0, 4.0)))
    assert costs.duration(("F", 0, 0)) == 1.0
    assert costs.duration(("F", 1, 0)) == 3.0


# Slow workers.


def test_slow_workers_by_name_node_and_role() -> None:
    plan = regular_plan(blocks(2), replicas=2, stages=2, tensor=2, devices_per_node=4)
    profile = Profile(slow={"n0": 1.5, "n0.g3": 4.0, "r1.s0.t1": 2.0, "r0.s1": 3.0})
    assert slow_workers(plan, profile) == {
        "n0.g0": 1.5,
        "n0.g1": 1.5,
        "n0.g2": 3.0,
        "n0.g3": 4.0,
        "n1.g1": 2.0,
    }


def test_fast_workers_help_only_where_all_are_fast() -> None:
    plan = regular_plan(blocks(2), stages=2, tensor=2)
    costs = costs_of(plan, Profile(slow={"r0.s0": 0.5, "r0.s1.t0": 0.5}))
    assert [cost.forward for cost in costs.stage] == [0.25, 0.5]


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_a_slow_down_is_positive(factor: float) -> None:
    with pytest.raises(HoldfastError, match=f"slow n0={factor}"):
        slow_workers(even_chain(1, 1), Profile(slow={"n0": factor}))


def test_no_worker_is_slow_by_mistake() -> None:
    with pytest.raises(HoldfastError, match="'n1' names no worker"):
        slow_workers(regular_plan(blocks(1), micro_batches=1), Profile(slow={"n1": 2.0}))


# Links.


PROFILE = Profile(
    within_node=Link(1.0),
    between_nodes=Link(2.0),
    links={"n0>n1": Link(3.0), "n0.g0>n1.g0": Link(4.0), "n0>n0": Link(5.0)},
)


@pytest.mark.parametrize(
    ("source", "target", "latency"),
    [
        ("n0.g0", "n1.g0", 4.0),
        ("n0.g0", "n1.g1", 3.0),
        ("n1.g0", "n0.g0", 2.0),
        ("n1.g0", "n1.g1", 1.0),
        ("n0.g0", "n0.g1", 5.0),
        ("n10.g0", "n1.g0", 2.0),
    ],
)
def test_the_narrowest_link_that_is_named_counts(source: str, target: str, latency: float) -> None:
    assert link_between(PROFILE, source, target).latency == latency


def test_without_exceptions_the_node_decides() -> None:
    plain = msgspec.structs.replace(PROFILE, links={})
    assert link_between(plain, "n0.g0", "n0.g1").latency == 1.0
    assert link_between(plain, "n0.g0", "n1.g0").latency == 2.0


def test_a_link_is_busy_for_its_bytes() -> None:
    assert Link(1.0, 4.0).occupancy(10.0) == 2.5
    assert Link(1.0).occupancy(10.0) == 0.0


def stage_on(*workers: str) -> Stage:
    return Stage(0, 0, 0, 1, workers, (("tensor", len(workers)),) if len(workers) > 1 else ())


def test_a_message_meets_the_slowest_pair() -> None:
    links = {"n0.g0>n1.g0": Link(1.0, 8.0), "n0.g1>n1.g1": Link(0.5, 2.0)}
    profile = Profile(between_nodes=Link(9.0, 1.0), links=links)
    wide = message_link(profile, stage_on("n0.g0", "n0.g1"), stage_on("n1.g0", "n1.g1"))
    assert wide == Link(1.0, 2.0)


def test_a_sender_of_several_shares_its_bandwidth() -> None:
    profile = Profile(between_nodes=Link(0.0, 6.0), links={"n0.g1>n1.g2": Link(0.0, 2.5)})
    receivers = stage_on("n1.g0", "n1.g1", "n1.g2")
    assert message_link(profile, stage_on("n0.g0"), receivers) == Link(0.0, 2.0)
    assert message_link(profile, stage_on("n0.g0", "n0.g1"), receivers) == Link(0.0, 2.5)


def test_nothing_travels_from_a_worker_to_itself() -> None:
    slow = Profile(within_node=Link(1.0, 1.0))
    assert message_link(slow, stage_on("n0.g0"), stage_on("n0.g0")) == Link()
    assert message_link(slow, stage_on("n0.g0", "n0.g1"), stage_on("n0.g0")) == Link()
    assert message_link(slow, stage_on("n0.g0"), stage_on("n0.g0", "n0.g1")) == Link(1.0, 1.0)


@settings(max_examples=60)
@given(plans, st.sampled_from([0.5, 2.0, 3.0]))
def test_all_slow_alike_is_all_longer_alike(plan: Plan, factor: float) -> None:
    layout = layout_of(plan)
    usual = resolve(layout, Profile())
    slow = resolve(layout, Profile(slow=dict.fromkeys(plan.workers, factor)))
    for number, route in enumerate(layout.routes):
        for stage in route:
            for kind in "FBIW":
                op = (kind, stage, number)
                assert slow.duration(op) == pytest.approx(factor * usual.duration(op))


def test_a_tensor_degree_that_was_not_measured_follows_from_the_nearest_one():
    assert tensor_factor(Profile(), 4) == 0.25
    measured = Profile(tensor={2: 1.0, 8: 0.3})
    assert [tensor_factor(measured, degree) for degree in (1, 2, 3, 8)] == [2.0, 1.0, 2 / 3, 0.3]
