"""What follows the computations: reductions beside them, agreement, optimizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Plan, Stage, whole_route
from holdfast.plan.profile import Link, Profile
from holdfast.plan.step_epilogue import ring
from holdfast.plan.timeline import Timeline, evaluate
from holdfast.plan.units import TensorSpec, Unit
from support.random_plans import plans


def heavy_units(count: int, num_elements: int = 8) -> tuple[Unit, ...]:
    """Each holds one tensor: 4 gradient bytes per element."""
    return tuple(
        Unit(f"block.{n}", (TensorSpec(f"block.{n}.w", (num_elements,)),)) for n in range(count)
    )


def test_one_holder_has_nothing_to_reduce() -> None:
    plan = regular_plan(heavy_units(2), stages=2, micro_batches=2)
    epilogue = evaluate(plan, Profile(reduce=Link(latency=5.0))).epilogue
    assert epilogue.reductions == ()
    assert epilogue.end == epilogue.computed == 9.0


def test_free_links_reduce_in_no_time() -> None:
    plan = regular_plan(heavy_units(2), replicas=2, stages=2, micro_batches=4)
    assert evaluate(plan).epilogue.reductions == ()


def test_a_ring_takes_its_known_time() -> None:
    """4 members, 32 bytes at 8 per unit of time: 2 x 3/4 x 4, and 6 latencies."""
    plan = regular_plan(heavy_units(1), replicas=4, micro_batches=4)
    epilogue = evaluate(plan, Profile(reduce=Link(latency=0.5, bandwidth=8.0))).epilogue
    (reduction,) = epilogue.reductions
    assert (reduction.start, reduction.end) == (3.0, 3.0 + 6.0 + 3.0)
    assert reduction.lanes == (0, 1, 2, 3)
    assert epilogue.computed == 3.0
    assert epilogue.end == 12.0


def test_a_shared_tensor_is_split_over_its_workers() -> None:
    plan = regular_plan(heavy_units(1), replicas=2, tensor=2, shard=2, micro_batches=2)
    (reduction,) = evaluate(plan, Profile(reduce=Link(bandwidth=1.0))).epilogue.reductions
    assert reduction.end - reduction.start == 32 / 4


def test_later_units_are_reduced_while_earlier_ones_still_compute() -> None:
    """One stage of four units: its last backward takes 8 and passes the last unit first."""
    plan = regular_plan(heavy_units(4), replicas=2, micro_batches=2)
    epilogue = evaluate(plan, Profile(reduce=Link(latency=0.5))).epilogue
    assert epilogue.computed == 12.0
    assert [r.unit for r in epilogue.reductions] == [3, 2, 1, 0]
    assert [(r.start, r.end) for r in epilogue.reductions] == [
        (6.0, 7.0),
        (8.0, 9.0),
        (10.0, 11.0),
        (12.0, 13.0),
    ]


def test_one_lane_reduces_one_bucket_at_a_time() -> None:
    plan = regular_plan(heavy_units(4), replicas=2, micro_batches=2)
    epilogue = evaluate(plan, Profile(reduce=Link(latency=2.0))).epilogue
    assert [(r.start, r.end) for r in epilogue.reductions] == [
        (6.0, 10.0),
        (10.0, 14.0),
        (14.0, 18.0),
        (18.0, 22.0),
    ]
    assert epilogue.end == 22.0


def test_the_slowest_holder_is_waited_for() -> None:
    plan = regular_plan(heavy_units(1), replicas=2, micro_batches=2)
    profile = Profile(reduce=Link(latency=0.5), slow={"r1": 3.0}, agree=1.0, optimizer=0.5)
    epilogue = evaluate(plan, profile).epilogue
    assert epilogue.reductions[0].start == 9.0
    assert epilogue.end == 9.0 + 1.0 + 1.0 + 0.5


def test_split_backwards_are_done_with_the_last_weight_gradient() -> None:
    plan = regular_plan(
        heavy_units(2), replicas=2, stages=2, micro_batches=4, schedule="zero-bubble"
    )
    timeline = evaluate(plan, Profile(reduce=Link(latency=0.5)))
    last = [timeline.spans(lane)[-1] for lane in (0, 1)]
    assert [span.kind for span in last] == ["W", "W"]
    ready = {r.unit: r.start for r in timeline.epilogue.reductions}
    assert ready == {0: last[0].end, 1: last[1].end}


def test_replicas_cut_elsewhere_reduce_unit_by_unit() -> None:
    """Units 0 and 1 meet on different stages: every unit has its own members."""
    stages = (
        Stage(0, 0, 0, 1, ("n0.g0",)),
        Stage(0, 1, 1, 3, ("n0.g1",)),
        Stage(1, 0, 0, 2, ("n1.g0",)),
        Stage(1, 1, 2, 3, ("n1.g1",)),
    )
    routes = (whole_route(stages[:2]), whole_route(stages[2:]))
    timeline = evaluate(Plan(heavy_units(3), stages, routes), Profile(reduce=Link(latency=1.0)))
    members = {r.unit: r.lanes for r in timeline.epilogue.reductions}
    assert members == {0: (0, 2), 1: (1, 2), 2: (1, 3)}


def test_a_holder_without_micro_batches_is_ready_at_once() -> None:
    stages = (Stage(0, 0, 0, 1, ("n0.g0",)), Stage(1, 0, 0, 1, ("n0.g1",)))
    plan = Plan(heavy_units(1), stages, (whole_route(stages[:1]),))
    (reduction,) = evaluate(plan, Profile(reduce=Link(latency=1.0))).epilogue.reductions
    assert (reduction.start, reduction.end) == (3.0, 5.0)


@pytest.mark.slow
@settings(max_examples=100)
@given(plans, st.sampled_from([0.0, 0.25]), st.sampled_from([0.0, 16.0]))
def test_reductions_never_overlap_on_a_lane(plan: Plan, latency: float, bandwidth: float) -> None:
    profile = Profile(reduce=Link(latency, bandwidth), agree=0.5, optimizer=0.25)
    timeline: Timeline = evaluate(plan, profile)
    busy = [0.0] * len(timeline.layout.lanes)
    assert len({r.unit for r in timeline.epilogue.reductions}) == len(timeline.epilogue.reductions)
    for reduction in timeline.epilogue.reductions:
        assert reduction.end >= reduction.start
        for lane in reduction.lanes:
            assert reduction.start >= busy[lane]
            busy[lane] = reduction.end
    last = max([timeline.epilogue.computed, *busy])
    assert timeline.iteration_time == pytest.approx(last + 0.75)


def test_a_ring_sends_its_share_both_ways() -> None:
    assert ring(32.0, 4, Link(1.0, 8.0)) == 2 * 0.75 * 4.0 + 6.0
