import pytest

from holdfast.cli.what_if import change_routes, lose_workers
from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.plan import Plan
from support.timelines import small_plan, with_schedule


def passing(plan: Plan, stage: str) -> int:
    return len(plan.micro_batches_by_stage[stage])


def test_the_work_of_a_lost_stage_is_shared_evenly():
    plan = small_plan(replicas=4, micro_batches=32)
    smaller, lost = lose_workers(plan, ["r0.s1"])
    assert [stage.name for stage in lost] == ["r0.s1"]
    assert sorted(passing(smaller, f"r{r}.s1") for r in (1, 2, 3)) == [10, 11, 11]
    assert passing(smaller, "r0.s2") == 8
    check_plan(smaller)


def test_a_lost_replica_is_replaced_by_whole_ones():
    smaller, lost = lose_workers(small_plan(replicas=3, micro_batches=24), ["r0"])
    assert len(lost) == 4
    assert all(len({hop.stage.partition(".")[0] for hop in route}) == 1 for route in smaller.routes)
    assert passing(smaller, "r1.s0") == passing(smaller, "r2.s3") == 12
    check_plan(smaller)


def test_a_worker_takes_its_tensor_group_with_it():
    smaller, lost = lose_workers(small_plan(tensor=2), ["n0.g2"])
    assert [stage.name for stage in lost] == ["r0.s1"]
    assert "n0.g3" not in smaller.workers


def test_losses_add_up():
    plan = small_plan(replicas=3, micro_batches=24)
    smaller, lost = lose_workers(plan, ["r0.s1", "r1.s2"])
    assert [stage.name for stage in lost] == ["r0.s1", "r1.s2"]
    check_plan(smaller)


def test_nothing_lost_nothing_changed():
    plan = small_plan()
    assert lose_workers(plan, []) == (plan, ())


def test_the_last_holder_cannot_be_lost():
    with pytest.raises(HoldfastError, match=r"r1\.s1 is lost.*units 2-4|r0\.s1 is lost"):
        lose_workers(small_plan(), ["r0.s1", "r1.s1"])


def test_an_explicit_schedule_stays_as_it_is():
    plan = with_schedule(small_plan(), kind="explicit")
    with pytest.raises(HoldfastError, match="explicit"):
        lose_workers(plan, ["r0.s1"])


def test_routes_by_hand():
    plan = change_routes(small_plan(), ["2-3=r1", " 4 = r0.s0 r1.s1 r1.s2 r0.s3 "])
    assert plan.routes[2] == plan.routes[15]
    assert [hop.stage for hop in plan.routes[4]] == ["r0.s0", "r1.s1", "r1.s2", "r0.s3"]
    assert plan.routes[5] == small_plan().routes[5]
    check_plan(plan)


@pytest.mark.parametrize("text", ["", "3", "3=", "x=r0", "16=r0", "5-3=r0", "3=r7", "3=r0.s9"])
def test_routes_that_mean_nothing(text):
    with pytest.raises(HoldfastError):
        change_routes(small_plan(), [text])
