import msgspec

from holdfast.plan.build import regular_plan
from holdfast.plan.parts import representative
from holdfast.plan.plan import Hop, Plan
from holdfast.plan.profile import Profile
from support.random_plans import make_units


def first_of(plan: Plan) -> Plan:
    return representative(plan)[0]


def test_equal_replicas_have_one_representative() -> None:
    plan = regular_plan(make_units(4), replicas=6, stages=2, tensor=2, micro_batches=12)
    small = first_of(plan)
    assert [stage.name for stage in small.stages] == ["r0.s0", "r0.s1"]
    assert small.routes == plan.routes[:2]


def test_replicas_with_other_loads_are_another_kind() -> None:
    plan = regular_plan(make_units(4), replicas=3, stages=2, micro_batches=7)
    assert [stage.replica for stage in first_of(plan).stages] == [0, 0, 2, 2]


def test_crossing_routes_make_one_part() -> None:
    plan = regular_plan(make_units(4), replicas=3, stages=2, micro_batches=6)
    crossing = (Hop("r0.s0", 0, 2), Hop("r1.s1", 2, 4))
    crossed = msgspec.structs.replace(plan, routes=(crossing, *plan.routes[1:]))
    assert len(first_of(crossed).stages) == 6
    back = msgspec.structs.replace(plan, routes=plan.routes[:1] * 2 + plan.routes[2:])
    assert len(first_of(back).stages) == 2


def test_a_slow_or_loaded_part_is_another_kind() -> None:
    plan = regular_plan(make_units(4), replicas=3, stages=2, micro_batches=6)
    smaller, left = representative(plan, Profile(slow={"r1.s1": 2.0}))
    assert [stage.replica for stage in smaller.stages] == [0, 0, 1, 1]
    assert left.slow == {"n0.g3": 2.0}
    loads = (1.0, 1.0, 1.0, 1.0, 3.0, 1.0)
    smaller, left = representative(plan, Profile(workload=loads))
    assert [stage.replica for stage in smaller.stages] == [0, 0, 2, 2]
    assert left.workload == (1.0, 1.0, 3.0, 1.0)
