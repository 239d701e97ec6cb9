"""Orders by formula: against torch's own, against closed forms, and where they are not used."""

from itertools import product

import msgspec
import pytest

from holdfast.plan.build import regular_plan
from holdfast.plan.lanes import LaneOrder, layout_of
from holdfast.plan.memory import peak_in_flight
from holdfast.plan.plan import Hop, Plan, Schedule, Stage, whole_route
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from holdfast.schedule.orders import compute_orders
from holdfast.schedule.rounds import num_left_over
from support import torch_orders
from support.small_plans import blocks, even_chain, per_stage, v_shaped

TRIPLES = [(1.0, 1.0, 1.0), (1.0, 0.5, 1.5), (2.0, 3.0, 1.0), (0.5, 1.0, 2.0)]


def orders_of(plan: Plan) -> list[LaneOrder]:
    return compute_orders(layout_of(plan))


def time_of(
    plan: Plan, cost: tuple[float, float, float], orders: list[LaneOrder] | None = None
) -> float:
    return evaluate(plan, per_stage(*cost), orders).iteration_time


def text(order: LaneOrder) -> str:
    return " ".join(f"{kind}{number}" for kind, _, number in order)


def round_sizes() -> list[tuple[int, int, int]]:
    """(depth, virtual, micro-batches) that fill rounds."""
    sizes = product(range(1, 7), (2, 3, 4), range(1, 19))
    return [(p, v, m) for p, v, m in sizes if num_left_over(m, p) == 0]


@pytest.fixture(scope="module", autouse=True)
def torch_is_loaded() -> None:
    """Importing takes longer than all these tests; it shall not count as the first one's time."""
    torch_orders.torch_schedules()


# How the orders read.


def test_1f1b_reads_as_in_the_books() -> None:
    assert [text(order) for order in orders_of(even_chain(3, 4))] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_gpipe_reads_as_in_the_books() -> None:
    assert [text(order) for order in orders_of(even_chain(2, 3, "gpipe"))] == [
        "F0 F1 F2 B0 B1 B2",
        "F0 F1 F2 B0 B1 B2",
    ]


def test_zero_bubble_delays_weight_gradients_on_later_stages() -> None:
    assert [text(order) for order in orders_of(even_chain(2, 3, "zero-bubble"))] == [
        "F0 F1 I0 W0 F2 I1 W1 I2 W2",
        "F0 I0 F1 I1 W0 F2 I2 W1 W2",
    ]


def test_every_replica_runs_its_own_micro_batches() -> None:
    plan = regular_plan(blocks(2), replicas=2, stages=2, micro_batches=5)
    assert [text(order) for order in orders_of(plan)] == [
        "F0 F1 B0 B1",
        "F0 B0 F1 B1",
        "F2 F3 B2 F4 B3 B4",
        "F2 B2 F3 B3 F4 B4",
    ]


# Times by formula.


@pytest.mark.parametrize("cost", [(1.0, 1.0, 1.0), (1.0, 2.0, 0.5), (2.0, 2.0, 1.0)])
def test_zero_bubble_takes_the_time_of_zb_h1(cost: tuple[float, float, float]) -> None:
    forward, backward_input, backward_weight = cost
    for depth in range(1, 9):
        for total in range(depth, 25):
            bubble = (depth - 1) * (forward + backward_input - backward_weight)
            plan = even_chain(depth, total, "zero-bubble")
            assert time_of(plan, cost) == total * sum(cost) + bubble


def test_zero_bubble_keeps_no_more_in_flight_than_1f1b() -> None:
    for depth, total in product(range(1, 7), range(1, 13)):
        whole = evaluate(even_chain(depth, total))
        split = evaluate(even_chain(depth, total, "zero-bubble"))
        assert peak_in_flight(split, 0) == peak_in_flight(whole, 0)
        for lane in range(depth):
            assert peak_in_flight(split, lane) <= min(depth, total)


# Against torch.


def test_torch_gpipe_is_ours() -> None:
    for depth, total in product(range(1, 7), range(1, 13)):
        assert orders_of(even_chain(depth, total, "gpipe")) == torch_orders.gpipe(depth, total)


def test_torch_1f1b_is_ours_but_for_a_wrong_number_in_the_last_line() -> None:
    """torch 2.13 numbers the forwards of the last rank from 1; its execution does not use that."""
    for depth in range(1, 7):
        for total in range(depth, 13):
            ours, theirs = (
                orders_of(even_chain(depth, total)),
                torch_orders.one_f_one_b(depth, total),
            )
            last = theirs[-1]
            if last[0][2] == 1:
                last = [(kind, stage, n - 1 if kind == "F" else n) for kind, stage, n in last]
            assert [*theirs[:-1], last] == ours


def test_torch_interleaved_is_ours() -> None:
    for depth, virtual, total in round_sizes():
        plan = even_chain(depth, total, "interleaved", virtual)
        theirs = torch_orders.interleaved(depth, virtual, total)
        assert orders_of(plan) == theirs
        assert time_of(plan, TRIPLES[1]) == time_of(plan, TRIPLES[1], theirs)


def test_torch_interleaved_with_one_stage_each_keeps_more_and_gains_nothing() -> None:
    for depth, total in product(range(1, 7), range(1, 13)):
        if num_left_over(total, depth):
            continue
        plan = even_chain(depth, total)
        theirs = torch_orders.interleaved(depth, 1, total)
        assert time_of(plan, TRIPLES[0]) == time_of(plan, TRIPLES[0], theirs)
        more = evaluate(plan, per_stage(*TRIPLES[0]), theirs)
        assert peak_in_flight(more, 0) >= peak_in_flight(evaluate(plan), 0)


def test_torch_zero_bubble_is_ours() -> None:
    sizes = round_sizes() + [(p, 1, m) for p in range(1, 7) for m in range(1, 19)]
    for depth, virtual, total in sizes:
        if num_left_over(total, depth):
            continue
        plan = even_chain(depth, total, "zero-bubble", virtual)
        theirs = torch_orders.interleaved_zero_bubble(depth, virtual, total)
        assert orders_of(plan) == theirs


def test_torch_breadth_first_takes_our_time() -> None:
    """Its backwards come in the opposite order of micro-batches."""
    for depth, virtual, total in product(range(1, 6), (1, 2, 3), range(1, 10)):
        plan = even_chain(depth, total, "gpipe", virtual)
        theirs = torch_orders.looped_bfs(depth, virtual, total)
        for cost in TRIPLES[:2]:
            assert time_of(plan, cost, theirs) == time_of(plan, cost)


def v_time(depth: int, total: int) -> float:
    """Two stages per worker, forward = input = weight = 1: half a forward of bubble per worker."""
    return total * 6.0 + (depth - 1)


def test_torch_v_schedules_on_a_v() -> None:
    """ZBV reaches its closed form from 2p - 1 micro-batches on; below, it is up to 12 % off."""
    for depth in range(1, 7):
        for total in range(depth, 4 * depth + 1):
            plan, form = v_shaped(depth, total), v_time(depth, total)
            time = time_of(plan, TRIPLES[0], torch_orders.zbv(depth, total))
            if total >= 2 * depth - 1:
                assert time == form
            else:
                assert form <= time <= form / 0.88
            if total >= 2 * depth:
                dual = torch_orders.dual_pipe_v(depth, total)
                assert time_of(plan, TRIPLES[0], dual) == form


def test_list_scheduling_keeps_up_on_a_v() -> None:
    """With one micro-batch more in flight than torch's orders keep."""
    for depth in range(1, 7):
        for total in range(depth, 4 * depth + 1):
            plan = v_shaped(depth, total)
            timeline = evaluate(plan, per_stage(*TRIPLES[0]))
            form = v_time(depth, total)
            assert form <= timeline.iteration_time <= 1.1 * form
            if total % depth == 0:
                assert timeline.iteration_time == form
            assert all(peak_in_flight(timeline, lane) <= 2 * depth + 1 for lane in range(depth))


# Which rule is used.


def test_rounds_that_do_not_fill_are_list_scheduled() -> None:
    plan = even_chain(4, 9, "interleaved", virtual=2)
    assert num_left_over(9, 4) == 1
    timeline = evaluate(plan, per_stage(1.0, 1.0, 1.0))
    assert timeline.iteration_time <= (10 * 2 + 3) * 3.0  # what 10 micro-batches would take


def test_some_parts_may_be_regular_and_others_not() -> None:
    """Replicas 0 and 1 share a route, replica 2 keeps to itself: it gets plain 1F1B."""
    plan = regular_plan(blocks(2), replicas=3, stages=2, micro_batches=6)
    crossing = (Hop("r0.s0", 0, 1), Hop("r1.s1", 1, 2))
    crossed = Plan(plan.units, plan.stages, (crossing, *plan.routes[1:]))
    ours = orders_of(crossed)
    assert ours[4:] == orders_of(plan)[4:]
    assert sorted(number for kind, _, number in ours[1] if kind == "F") == [1]
    assert sorted(number for kind, _, number in ours[3] if kind == "F") == [0, 2, 3]


def test_extra_in_flight_goes_to_list_scheduling() -> None:
    plan = regular_plan(blocks(3), stages=3, micro_batches=6, schedule=Schedule(extra_in_flight=1))
    timeline = evaluate(plan)
    assert timeline.iteration_time <= (6 + 2) * 3.0
    assert [peak_in_flight(timeline, lane) <= 4 - lane for lane in range(3)] == [True] * 3


def test_a_stage_no_worker_passes_has_nothing_to_do() -> None:
    stages = (Stage(0, 0, 0, 2, ("n0.g0",)), Stage(1, 0, 0, 2, ("n0.g1",)))
    plan = Plan(blocks(2), stages, (whole_route(stages[:1]),) * 2)
    assert [text(order) for order in orders_of(plan)] == ["F0 B0 F1 B1", ""]


def test_an_order_that_is_no_rule_s_is_made_for_the_slow_workers_of_the_plan() -> None:
    """A micro-batch crosses replicas; the plan says that a worker takes three times as long."""
    units = blocks(4)
    plan = regular_plan(units, replicas=2, stages=2, micro_batches=8, devices_per_node=2)
    crossed = tuple(
        (Hop("r0.s0", 0, 2), Hop("r1.s1", 2, 4)) if number == 0 else route
        for number, route in enumerate(plan.routes)
    )
    plain = msgspec.structs.replace(plan, routes=crossed)
    schedule = Schedule(slow=(("n0.g0", 3.0), ("n9.g9", 2.0)))
    told = msgspec.structs.replace(plain, schedule=schedule)
    slow = Profile(slow={"n0.g0": 3.0})
    assert compute_orders(layout_of(told)) == compute_orders(layout_of(plain), slow)
    assert compute_orders(layout_of(told)) != compute_orders(layout_of(plain))
