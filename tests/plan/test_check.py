"""Bad plans are refused, each with a line that names both values."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.check import check_plan, check_shape
from holdfast.plan.plan import Hop, Limits, Plan, Schedule, Stage
from holdfast.plan.profile import Profile
from holdfast.plan.units import Split, TensorSpec, Unit
from support.random_plans import make_units, plans

replace = msgspec.structs.replace


def plan_of(**changes: object) -> Plan:
    plan = regular_plan(make_units(4), replicas=2, stages=2, tensor=2, micro_batches=4)
    return replace(plan, **changes)


def with_stage(plan: Plan, name: str, **changes: object) -> Plan:
    stages = tuple(replace(s, **changes) if s.name == name else s for s in plan.stages)
    return replace(plan, stages=stages)


def with_route(plan: Plan, *hops: Hop) -> Plan:
    return replace(plan, routes=(tuple(hops), *plan.routes[1:]))


def refused(plan: Plan, *words: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        check_plan(plan)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_plan_itself_passes() -> None:
    check_plan(plan_of())


def test_profiles_name_workers_and_micro_batches_of_the_whole_plan() -> None:
    check_plan(plan_of(), Profile(slow={"r1.s1": 2.0}, workload=(1.0, 2.0, 1.0, 1.0)))


def test_a_unit_no_worker_holds() -> None:
    plan = regular_plan(make_units(4), stages=2)
    refused(replace(plan, stages=plan.stages[:1]), "unit 2 (block.2)", "2 of 4")


def test_an_empty_stage() -> None:
    refused(with_stage(plan_of(), "r0.s1", first=2, stop=2), "r0.s1 is empty")


def test_units_beyond_the_model() -> None:
    refused(with_stage(plan_of(), "r0.s1", stop=7), "up to 6", "has 4")


def test_a_stage_described_twice() -> None:
    plan = plan_of()
    refused(replace(plan, stages=(*plan.stages, plan.stages[0])), "r0.s0 is described twice")


def test_workers_that_do_not_fill_the_axes() -> None:
    refused(with_stage(plan_of(), "r0.s0", workers=("n0.g0",)), "has 1 workers", "need 2")


def test_an_unknown_axis() -> None:
    refused(with_stage(plan_of(), "r0.s0", axes=(("colour", 2),)), "'colour'", "tensor")


def test_a_tensor_degree_the_model_cannot_be_split_by() -> None:
    units = make_units(2, heads=4)
    refused(regular_plan(units, tensor=5), "degree 5", "at most 4")


def test_a_worker_with_one_unit_twice() -> None:
    plan = with_stage(plan_of(), "r1.s0", workers=("n0.g0", "n0.g1"))
    refused(plan, "n0.g0 would hold unit 0 twice", "r0.s0", "r1.s0")


def test_a_worker_with_two_seats_of_a_stage() -> None:
    refused(with_stage(plan_of(), "r0.s0", workers=("n0.g0", "n0.g0")), "two seats")


ROUTES = {
    "skips": ([Hop("r0.s0", 0, 1), Hop("r0.s1", 2, 4)], "skips to unit 2"),
    "repeats": ([Hop("r0.s0", 0, 2), Hop("r1.s0", 1, 2), Hop("r0.s1", 2, 4)], "goes back to"),
    "disorders": ([Hop("r0.s1", 2, 4), Hop("r0.s0", 0, 2)], "skips to unit 2"),
    "ends early": ([Hop("r0.s0", 0, 2)], "ends after 2 of 4"),
    "passes twice": ([Hop("r0.s0", 0, 1), Hop("r0.s0", 1, 2), Hop("r0.s1", 2, 4)], "twice"),
    "asks too much": ([Hop("r0.s0", 0, 3), Hop("r0.s1", 3, 4)], "wants units 0-2", "holds 0-1"),
    "goes nowhere": ([], "ends after 0 of 4"),
    "unknown stage": ([Hop("r9.s0", 0, 2), Hop("r0.s1", 2, 4)], "no stage 'r9.s0'"),
}


@pytest.mark.parametrize("case", ROUTES.values(), ids=list(ROUTES))
def test_bad_routes(case: tuple[list[Hop], str]) -> None:
    refused(with_route(plan_of(), *case[0]), *case[1:])


def test_no_micro_batches() -> None:
    refused(plan_of(routes=()), "no micro-batches")


def test_too_few_micro_batches_for_replicas_and_schedules() -> None:
    with pytest.raises(HoldfastError, match="3 micro-batches cannot feed 4 replicas"):
        regular_plan(make_units(4), replicas=4, micro_batches=3)
    plan = regular_plan(make_units(4), stages=4, micro_batches=3, schedule="zero-bubble")
    refused(plan, "needs at least 4", "has 3")


def test_an_unknown_schedule() -> None:
    refused(plan_of(schedule=Schedule("magic")), "'magic'", "1f1b")


def test_device_memory() -> None:
    # 1e6 parameters x (2 + 4 + 12) bytes and three micro-batches of activations.
    unit = Unit("u", (TensorSpec("u.w", (1000, 1000), Split(0, 1000)),), activation_bytes=10**9)
    plan = regular_plan([unit, replace(unit, name="v", tensors=())], stages=2, micro_batches=4)
    needed = 18 * 10**6 + 2 * 10**9
    check_plan(replace(plan, limits=Limits(device_bytes=needed)))
    refused(replace(plan, limits=Limits(device_bytes=needed - 1)), "n0.g0", "1.88 GiB")


def test_memory_falls_with_the_tensor_degree_and_recomputation() -> None:
    unit = Unit("u", (), activation_bytes=10**9)
    limit = Limits(device_bytes=600 * 10**6)
    refused(regular_plan([unit], micro_batches=1, limits=limit), "needs")
    check_plan(regular_plan([unit], tensor=2, micro_batches=1, limits=limit))


def test_host_memory() -> None:
    unit = Unit("u", (TensorSpec("u.w", (10**4, 10**4)),))
    plan = regular_plan([unit], replicas=2, micro_batches=2, devices_per_node=1)
    # 1e8 x 14 bytes, half each, parity doubles it with two holders, two versions.
    needed = 10**8 * 14 * 2
    check_plan(replace(plan, limits=Limits(host_bytes=needed)))
    refused(replace(plan, limits=Limits(host_bytes=needed - 1)), "n0", "GiB")


def test_too_many_groups() -> None:
    refused(plan_of(limits=Limits(groups_per_worker=2)), "groups", "limit is 2")


def test_explicit_lines_are_checked() -> None:
    plan = regular_plan(make_units(2), stages=2, micro_batches=2)
    good = (("n0.g0", "F0 F1 B0 B1"), ("n0.g1", "F0 B0 F1 B1"))
    check_plan(replace(plan, schedule=Schedule("explicit", orders=good)))
    for line, words in {
        "F0 F1 B0": ("micro-batch 1",),
        "F0 F1 B0 B1 B1": ("twice",),
        "B0 F0 F1 B1": ("before",),
        "F0 F1 B0 B1 F2": ("belong to no route",),
        "F0 F1 B0 jump": ("'jump' is not an action",),
        "F0@r0.s1 F1 B0 B1": ("does not hold stage r0.s1",),
    }.items():
        orders = (("n0.g0", line), good[1])
        refused(replace(plan, schedule=Schedule("explicit", orders=orders)), *words)
    refused(replace(plan, schedule=Schedule("explicit", orders=good[:1])), "no line for n0.g1")
    stuck = (("n0.g0", "F1 F0 B0 B1"), ("n0.g1", "F0 B0 F1 B1"))
    check_plan(replace(plan, schedule=Schedule("explicit", orders=stuck)))  # odd, but it ends
    stuck = (("n0.g0", "F0 B0 F1 B1"), ("n0.g1", "F1 F0 B0 B1"))
    refused(replace(plan, schedule=Schedule("explicit", orders=stuck)), "cyclic wait")


def corrupt(draw: st.DrawFn, plan: Plan) -> Plan:
    """One random change that no valid plan survives."""
    stage = draw(st.sampled_from(plan.stages))
    number = draw(st.integers(0, len(plan.routes) - 1))
    route = plan.routes[number]

    def reroute(hops: tuple[Hop, ...]) -> Plan:
        return replace(plan, routes=(*plan.routes[:number], hops, *plan.routes[number + 1 :]))

    def restage(changed: Stage) -> Plan:
        return replace(plan, stages=tuple(changed if s is stage else s for s in plan.stages))

    which = draw(st.integers(0, 7))
    if which == 0:
        return reroute(route[:-1])
    if which == 1:
        return reroute((*route, route[-1]))
    if which == 2:
        return reroute((*route[:-1], replace(route[-1], stop=len(plan.units) + 1)))
    if which == 3:
        return reroute((replace(route[0], stage="r99.s0"), *route[1:]))
    if which == 4:
        return restage(replace(stage, stop=stage.first))
    if which == 5:
        return restage(replace(stage, workers=stage.workers[:-1]))
    if which == 6:
        return restage(replace(stage, axes=(("tensor", 1000),), workers=stage.workers))
    return replace(plan, stages=(*plan.stages, stage))


@settings(max_examples=150)
@given(st.data(), plans)
def test_random_corruptions_are_refused(data: st.DataObject, plan: Plan) -> None:
    @st.composite
    def broken(draw: st.DrawFn) -> Plan:
        return corrupt(draw, plan)

    with pytest.raises(HoldfastError) as caught:
        check_plan(data.draw(broken()))
    assert re.search(r"\d|r\d", str(caught.value))


def test_a_model_that_contradicts_itself() -> None:
    twin = Unit("v", (TensorSpec("u.w", (3, 3)),))
    unit = Unit("u", (TensorSpec("u.w", (2, 2)),))
    for units, word in {
        (): "no units",
        (unit, unit): "two units",
        (unit, twin): "differs",
        (Unit("u", (TensorSpec("u.w", (5,), Split(0, 2)),)),): "divide into 2",
        (Unit("u", (TensorSpec("u.w", (4,), Split(1, 2)),)),): "dimension 1",
        (Unit("u", (TensorSpec("u.w", (6,), Split(0, 3, 4)),)),): "3 parts do not divide",
        (Unit("u", (TensorSpec("u.w", (0,)),)),): "shape (0,)",
    }.items():
        with pytest.raises(HoldfastError, match=re.escape(word)):
            check_shape(Plan(units, (), ()))
