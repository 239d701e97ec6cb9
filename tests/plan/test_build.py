"""Constructors: the regular plan, dealt routes, and splits that are exactly the best."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import deal_routes, minimax_split, regular_plan, split_units
from holdfast.plan.plan import Hop, Limits, Schedule, StateBytes, is_chain
from holdfast.plan.units import Unit
from support.small_plans import blocks

# The minimax split.


def slowest(
    bounds: Sequence[tuple[int, int]], costs: Sequence[float], speeds: Sequence[float]
) -> float:
    return max(
        sum(costs[first:stop]) / speed for (first, stop), speed in zip(bounds, speeds, strict=True)
    )


def all_splits(count: int, num_stages: int) -> list[list[tuple[int, int]]]:
    cuts = combinations(range(1, count), num_stages - 1)
    return [list(zip((0, *cut), (*cut, count), strict=True)) for cut in cuts]


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=9).flatmap(
        lambda costs: st.tuples(
            st.just(costs),
            st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=len(costs)),
        )
    )
)
def test_no_split_is_better(case: tuple[list[int], list[int]]) -> None:
    costs, speeds = case
    bounds = minimax_split(costs, speeds)
    assert [first for first, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == len(costs)
    assert all(first < stop for first, stop in bounds)
    best = min(slowest(split, costs, speeds) for split in all_splits(len(costs), len(speeds)))
    assert slowest(bounds, costs, speeds) == best


def test_even_costs_are_split_evenly() -> None:
    assert minimax_split([1.0] * 8, [1.0] * 4) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_a_heavy_head_gets_fewer_neighbours() -> None:
    assert minimax_split([1.0, 1.0, 1.0, 1.0, 4.0], [1.0, 1.0]) == [(0, 4), (4, 5)]


def test_a_slow_stage_gets_fewer_units() -> None:
    assert minimax_split([1.0] * 9, [1.0, 0.5, 1.0]) == [(0, 3), (3, 5), (5, 9)]


def test_a_unit_more_may_help() -> None:
    """The first two units alone would put the heavy one on the slow stage."""
    assert minimax_split([0.0, 1.0, 0.0, 0.0], [2.0, 1.0, 1.0]) == [(0, 2), (2, 3), (3, 4)]


# Splits by name.


def test_even_and_cost_and_given_counts() -> None:
    units = [Unit(f"u{n}", (), cost, 0.0, 0.0) for n, cost in enumerate([9.0, 1.0, 1.0, 1.0, 1.0])]
    assert split_units(units, 2, "even") == [(0, 2), (2, 5)]
    assert split_units(units, 2, "cost") == [(0, 1), (1, 5)]
    assert split_units(units, 2, [3, 2]) == [(0, 3), (3, 5)]


@pytest.mark.parametrize(
    ("stages", "split", "words"),
    [
        (6, "even", "5 units cannot fill 6 stages"),
        (2, "fair", "split 'fair' is unknown"),
        (2, [2, 2], r"\[2, 2\] \(sum 4\) does not give 5 units to 2 stages"),
        (2, [5], "does not give 5 units to 2 stages"),
        (2, [5, 0], "at least one each"),
    ],
)
def test_splits_that_cannot_be_are_refused(stages: int, split: str | list[int], words: str) -> None:
    with pytest.raises(HoldfastError, match=words):
        split_units(blocks(5), stages, split)


# Dealing out micro-batches.


ROUTES = [(Hop(f"r{replica}.s0", 0, 1),) for replica in range(3)]


def test_routes_are_dealt_in_equal_blocks() -> None:
    assert deal_routes(ROUTES, 7) == (
        *[ROUTES[0]] * 2,
        *[ROUTES[1]] * 2,
        *[ROUTES[2]] * 3,
    )


def test_routes_are_dealt_as_counted() -> None:
    assert deal_routes(ROUTES, 4, [0, 3, 1]) == (*[ROUTES[1]] * 3, ROUTES[2])


def test_every_replica_needs_a_micro_batch() -> None:
    with pytest.raises(HoldfastError, match="2 micro-batches cannot feed 3 replicas"):
        deal_routes(ROUTES, 2)


@pytest.mark.parametrize("counts", [[1, 3], [1, 1, 1]])
def test_counts_must_fit(counts: list[int]) -> None:
    with pytest.raises(HoldfastError, match="do not fit 3 routes and 4 micro-batches"):
        deal_routes(ROUTES, 4, counts)


# The regular plan.


def test_workers_run_through_tensor_shard_stage_replica() -> None:
    plan = regular_plan(blocks(4), replicas=2, stages=2, shard=2, tensor=2, devices_per_node=4)
    assert [stage.name for stage in plan.stages] == ["r0.s0", "r0.s1", "r1.s0", "r1.s1"]
    stage = plan.stage("r1.s0")
    assert stage.workers == ("n2.g0", "n2.g1", "n2.g2", "n2.g3")
    assert stage.axes == (("shard", 2), ("tensor", 2))
    assert [stage.role(position) for position in range(4)] == [
        "r1.s0.d0.t0",
        "r1.s0.d0.t1",
        "r1.s0.d1.t0",
        "r1.s0.d1.t1",
    ]
    assert plan.num_micro_batches == 8
    assert all(is_chain(stages) for stages in plan.replicas.values())


def test_virtual_stages_are_dealt_in_turn() -> None:
    plan = regular_plan(blocks(6), replicas=2, stages=2, virtual=3, micro_batches=4)
    assert [stage.workers[0] for stage in plan.stages] == ["n0.g0", "n0.g1"] * 3 + [
        "n0.g2",
        "n0.g3",
    ] * 3
    assert plan.role("n0.g3") == "r1.s1+r1.s3+r1.s5"
    assert [hop.stage for hop in plan.routes[3]] == [f"r1.s{index}" for index in range(6)]


def test_everything_given_is_kept() -> None:
    limits, state = Limits(device_bytes=5), StateBytes(parameter=4)
    plan = regular_plan(
        blocks(3),
        stages=2,
        split=[1, 2],
        workers=["n7.g1", "n3.g0"],
        micro_batches=3,
        schedule=Schedule("gpipe", recompute=True),
        limits=limits,
        state_bytes=state,
    )
    assert plan.workers == ("n7.g1", "n3.g0")
    assert [(stage.first, stage.stop) for stage in plan.stages] == [(0, 1), (1, 3)]
    assert plan.schedule == Schedule("gpipe", recompute=True)
    assert (plan.limits, plan.state_bytes) == (limits, state)
    assert regular_plan(blocks(1), schedule="gpipe").schedule == Schedule("gpipe")


@pytest.mark.parametrize("degree", ["replicas", "stages", "tensor", "shard", "virtual"])
def test_degrees_are_at_least_one(degree: str) -> None:
    with pytest.raises(HoldfastError, match=f"{degree} = 0: at least 1 is needed"):
        regular_plan(blocks(4), **{degree: 0})


def test_the_number_of_workers_must_fit() -> None:
    with pytest.raises(HoldfastError, match="need 8 workers, 3 given"):
        regular_plan(blocks(4), replicas=2, stages=2, tensor=2, workers=["n0.g0", "n0.g1", "n0.g2"])


def test_a_large_plan_is_built_of_few_objects() -> None:
    """Micro-batches of one replica share one route: that keeps what follows fast."""
    plan = regular_plan(blocks(16), replicas=64, stages=16, micro_batches=4096)
    assert len({id(route) for route in plan.routes}) == 64
