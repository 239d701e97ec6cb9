from holdfast.plan.build import regular_plan
from holdfast.plan.groups import Group, groups_by_worker, plan_groups, transfers
from support.random_plans import make_units


def test_groups_of_a_regular_plan() -> None:
    plan = regular_plan(make_units(2), replicas=2, stages=2, tensor=2, micro_batches=4)
    groups = plan_groups(plan)
    assert Group("tensor", ("n0.g0", "n0.g1")) in groups
    assert Group("reduce", ("n0.g0", "n0.g4")) in groups
    assert Group("unit", ("n0.g0", "n0.g1", "n0.g4", "n0.g5")) in groups
    assert Group("link", ("n0.g0", "n0.g2")) in groups
    assert Group("link", ("n0.g2", "n0.g0")) in groups
    assert groups[-1] == Group("all", plan.workers)
    assert len(groups) == len(set(groups))


def test_counts_do_not_grow_with_layers() -> None:
    few = regular_plan(make_units(4), replicas=2, stages=2, micro_batches=4)
    many = regular_plan(make_units(40), replicas=2, stages=2, micro_batches=4)
    assert groups_by_worker(few) == groups_by_worker(many)


def test_a_single_worker_needs_no_group() -> None:
    assert plan_groups(regular_plan(make_units(2), micro_batches=1)) == ()


def test_shard_groups() -> None:
    plan = regular_plan(make_units(1), shard=2, tensor=2, micro_batches=1)
    groups = [group for group in plan_groups(plan) if group.kind == "shard"]
    assert groups == [Group("shard", ("n0.g0", "n0.g2")), Group("shard", ("n0.g1", "n0.g3"))]


def test_unequal_degrees_take_turns() -> None:
    two, three = ("a", "b"), ("x", "y", "z")
    assert transfers(two, three) == [("a", "x"), ("a", "y"), ("b", "z")]
    assert transfers(three, two) == [("x", "a"), ("y", "b")]
