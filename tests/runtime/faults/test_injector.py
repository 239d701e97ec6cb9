import random

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.runtime.faults.injector import FaultSchedule, find_target, place_faults
from holdfast.runtime.faults.kinds import Fault
from support.random_plans import make_units

PLAN = regular_plan(make_units(4), replicas=2, stages=2, micro_batches=4, devices_per_node=2)


def target(kind="SIGKILL", **fields) -> str:
    return find_target(Fault(kind=kind, **fields), PLAN, random.Random(0))


def test_targets():
    assert target(target="n1.g0") == "n1.g0"
    assert target(target="r1.s1") == "n1.g1"
    assert target(target="n1") in ("n1.g0", "n1.g1")
    assert target(target="random") in PLAN.workers
    assert target("NODE_LOSS", target="n1.g0") == "n1"
    assert target("PARTITION", target="random") in ("n0", "n1")


def test_an_unknown_worker():
    with pytest.raises(HoldfastError, match=r"'n7\.g0' is no worker, node or role"):
        target(target="n7.g0")


def test_a_worker_without_a_role_is_hit_by_its_name_only():
    spares, chance = (*PLAN.workers, "n9.g0"), random.Random(0)
    fault = Fault(kind="SIGKILL", target="n9.g0")
    assert find_target(fault, PLAN, chance, spares) == "n9.g0"
    by_role = Fault(kind="SIGKILL", target="r1.s1")
    assert find_target(by_role, PLAN, chance, spares) == "n1.g1"
    struck = {find_target(Fault(kind="SIGKILL"), PLAN, chance, spares) for _ in range(50)}
    assert struck == {*PLAN.workers}


def test_the_same_seed_hits_the_same_ones():
    faults = [Fault(kind="SIGKILL", at_step=step) for step in range(20)]
    first, second = (place_faults(faults, PLAN, 5) for _ in range(2))
    assert first == second
    assert len({fault.target for fault in first}) > 1
    assert place_faults(faults, PLAN, 6) != first


def test_faults_come_once_when_their_step_is_done():
    early, late = Fault(kind="SIGKILL", at_step=3), Fault(kind="SIGSTOP", at_step=5)
    schedule = FaultSchedule([late, early], 0, 0)
    assert schedule.due(2, 0) == []
    assert schedule.due(3, 0) == [early]
    assert schedule.due(9, 0) == [late]
    assert schedule.due(9, 0) == []


def test_what_another_coordinator_has_done_is_not_done_again():
    faults = [Fault(kind="COORDINATOR_LOSS", at_step=step) for step in (3, 9)]
    schedule = FaultSchedule(faults, 0, 0, done=["SIGKILL", "COORDINATOR_LOSS"])
    assert schedule.due(20, 0) == faults[1:]


def test_what_workers_do_to_themselves_is_not_due_here():
    inside = [Fault(kind="SEGFAULT", at_step=3), Fault(kind="SIGKILL", at_step=3, phase="agree")]
    assert FaultSchedule(inside, 0, 0).due(9, 0) == []


def test_some_come_again_and_again():
    fault = Fault(kind="SIGKILL", mean_time_s=10.0)
    schedule = FaultSchedule([fault], 1, 0)
    found = sum(len(schedule.due(0, now)) for now in range(0, 1_000_000, 100))
    assert 60 < found < 150


def test_a_slow_link_needs_both_ends():
    fault = Fault(kind="SLOW_LINK", target="n0>n1")
    assert place_faults([fault], PLAN, 0) == (fault,)
    with pytest.raises(HoldfastError, match=r"'n7' of 'n0>n7' is no worker or node"):
        place_faults([Fault(kind="SLOW_LINK", target="n0>n7")], PLAN, 0)
