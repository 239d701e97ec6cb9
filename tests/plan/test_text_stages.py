import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.text_stages import parse_replicas, refuse_twins, replica_runs
from support.random_plans import make_units


def test_equal_replicas_are_one_run() -> None:
    plan = regular_plan(make_units(4), replicas=3, stages=2, tensor=2, micro_batches=6)
    assert list(replica_runs(plan)) == [
        ("0-2", ("0-1 tensor=2", "2-3 tensor=2"), plan.workers),
    ]


def test_virtual_stages_share_slots() -> None:
    plan = regular_plan(make_units(4), stages=2, virtual=2, micro_batches=2)
    ((_, texts, workers),) = replica_runs(plan)
    assert texts == ("0", "1", "2 slot=0", "3 slot=1")
    entry = {"name": "0", "stages": list(texts), "workers": ",".join(workers)}
    assert tuple(parse_replicas(entry)) == plan.stages


def test_a_stage_has_one_description() -> None:
    plan = regular_plan(make_units(2), stages=2)
    with pytest.raises(HoldfastError, match=r"r0\.s1 is described twice"):
        refuse_twins((*plan.stages, plan.stages[1]))
