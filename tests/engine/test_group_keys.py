"""Which groups a worker needs, and in what order."""

from itertools import product

import pytest
from hypothesis import given

from holdfast.engine.group_keys import link_key, needed_groups
from holdfast.plan.build import regular_plan
from support.random_plans import make_units, plans

UNITS = make_units(4)
CUBE = regular_plan(UNITS, replicas=2, stages=2, tensor=2, micro_batches=4)
WORKER = "n0.g0"


def test_a_worker_makes_only_its_own_groups():
    keys = needed_groups(CUBE, WORKER, "gloo")
    assert all(WORKER in members for _, members in keys)
    assert {kind for kind, _ in keys} == {"tensor", "reduce", "all", "link"}
    assert len(set(keys)) == len(keys)


def test_gloo_needs_one_link_per_pair_and_nccl_one_per_direction():
    pipe = regular_plan(UNITS, stages=2, micro_batches=4)
    assert needed_groups(pipe, WORKER, "gloo") == [
        ("link", ("n0.g0", "n0.g1")),
        ("all", ("n0.g0", "n0.g1")),
    ]
    assert [members for kind, members in needed_groups(pipe, WORKER, "nccl") if kind == "link"] == [
        ("n0.g0", "n0.g1"),
        ("n0.g1", "n0.g0"),
    ]
    assert link_key("b", "a", "gloo") == link_key("a", "b", "gloo")
    assert link_key("b", "a", "nccl") != link_key("a", "b", "nccl")


@pytest.mark.slow
@given(plans)
def test_any_two_workers_make_the_groups_they_share_in_one_order(plan):
    """Otherwise each could wait for the other in a different group."""
    needed = {worker: needed_groups(plan, worker, "gloo") for worker in plan.workers[:6]}
    for a, b in product(needed, repeat=2):
        shared = [key for key in needed[a] if b in key[1]]
        assert shared == [key for key in needed[b] if a in key[1]]
