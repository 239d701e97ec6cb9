"""Which device sits where."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.units import Unit
from holdfast.plan.workers import worker_name
from holdfast.sim.cluster.job import make_job, usual_replicas, usual_spares
from support.sim_jobs import small_job


def test_devices_sit_as_in_a_regular_plan():
    job = small_job()
    units = [Unit(f"u{i}") for i in range(12)]
    plan = regular_plan(units, replicas=4, stages=4, tensor=2, devices_per_node=2)
    for device in range(job.devices):
        pipeline, stage = job.seat(device)
        name = worker_name(job.node_of(device), device % job.devices_per_node)
        assert plan.role(name).startswith(f"r{pipeline}.s{stage}.")


def test_numbers_of_a_large_job():
    job = make_job("llama-70b", 98_304)
    assert (job.devices, job.nodes, job.replicas, job.pipelines) == (98_304, 12_288, 12, 1536)
    assert job.spare_nodes == 48
    assert sum(job.layer_counts) == job.num_layers


def test_replicas_group_pipelines():
    job = small_job(replicas=2, chains=2)
    assert [job.replica_of(p) for p in range(4)] == [0, 0, 1, 1]


def test_the_last_node_may_be_smaller():
    job = small_job(devices_per_node=5)
    assert list(job.node_devices(job.nodes - 1)) == [30, 31]


@pytest.mark.parametrize(("pipelines", "replicas"), [(4, 4), (20, 20), (1536, 12), (23, 23)])
def test_usual_replicas(pipelines, replicas):
    assert usual_replicas(pipelines) == replicas


def test_usual_spares():
    assert (usual_spares(12_288), usual_spares(1024), usual_spares(8)) == (48, 4, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 100}, "not a multiple of 64"),
        ({"devices": 640, "replicas": 3}, "10 pipelines"),
        ({"devices": 81 * 8, "stages": 81, "tensor": 8}, "80 layers cannot fill 81 stages"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(HoldfastError, match=words):
        make_job("llama-70b", **({"devices": 640} | changes))
