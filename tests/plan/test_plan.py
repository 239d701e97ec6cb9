import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Stage, is_chain
from support.random_plans import make_units


def test_roles_and_coordinates() -> None:
    plan = regular_plan(make_units(2), stages=2, shard=2, tensor=3, micro_batches=2)
    assert plan.role("n0.g4") == "r0.s0.d1.t1"
    assert plan.role("n0.g6") == "r0.s1.d0.t0"
    stage = plan.stages[0]
    assert stage.peers("tensor", 4) == ("n0.g3", "n0.g4", "n0.g5")
    assert stage.peers("shard", 4) == ("n0.g1", "n0.g4")


def test_virtual_stages_give_a_worker_several_roles() -> None:
    plan = regular_plan(make_units(4), stages=2, virtual=2, micro_batches=2)
    assert plan.role("n0.g1") == "r0.s1+r0.s3"
    assert plan.workers == ("n0.g0", "n0.g1")


def test_patterns_select_workers() -> None:
    plan = regular_plan(make_units(2), replicas=2, stages=2, tensor=2, micro_batches=2)
    assert plan.select("r0.s1") == ("n0.g2", "n0.g3")
    assert plan.select("r0.s1.t1") == ("n0.g3",)
    assert plan.select("n0") == plan.workers
    assert plan.select("r1") == ("n0.g4", "n0.g5", "n0.g6", "n0.g7")
    with pytest.raises(HoldfastError, match=r"'r5' names no worker.*n0\.g0"):
        plan.select("r5")


def test_a_plan_is_a_value() -> None:
    one, two = (regular_plan(make_units(2), stages=2) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    with pytest.raises(AttributeError):
        one.units = ()  # type: ignore[misc]


def test_unknown_stages_are_named() -> None:
    plan = regular_plan(make_units(2), stages=2)
    with pytest.raises(HoldfastError, match=r"no stage 'r7.s0'.*r0.s0 .. r0.s1"):
        plan.stage("r7.s0")


def test_chains() -> None:
    a, b = Stage(0, 0, 0, 2, ("a",)), Stage(0, 1, 2, 3, ("b",))
    assert is_chain((a, b))
    assert not is_chain((b, a))
