"""One thing changes at a time."""

from holdfast.sim.cluster.compare import POLICIES
from holdfast.sim.cluster.hazards import HazardRates
from holdfast.sim.cluster.sweep import scaled, situation_cells, situations, sweep_rate, sweep_scale
from support.sim_jobs import HOUR, small_job

JOB = small_job(replicas=64, spare_nodes=4)
MAKERS = {name: POLICIES[name] for name in ("checkpoint", "ft-hsdp", "recycle", "resihp")}


def test_scaled_jobs_keep_their_pipelines():
    half = scaled(JOB, 0.5)
    assert (half.pipelines, half.stages, half.tensor) == (32, 4, 2)
    assert scaled(JOB, 0.0001).pipelines == 2


def test_larger_clusters_and_more_failures_cost_more():
    rates = HazardRates(mtbf_ms=HOUR // 2)
    for sweep, worst in ((sweep_scale, -1), (sweep_rate, 0)):
        points = list(sweep(JOB, rates, 8 * HOUR, 1, MAKERS))
        assert {point.policy for point in points} == set(MAKERS)
        line = [point.goodput for point in points if point.policy == "checkpoint"]
        assert min(line) == line[worst]
        xs = [point.x for point in points if point.policy == "checkpoint"]
        assert xs == sorted(set(xs))


def test_situations_are_what_they_are_called():
    found = situations(JOB)
    assert found["1 device lost"].broken(2) == (0,)
    assert len(found["2 pipelines, same stage"].broken(2)) == 2
    assert found["1 device at 45%"].broken(2) == ()
    assert "8 nodes of a switch" in found
    assert "8 nodes of a switch" not in situations(small_job(replicas=2))


def test_every_policy_answers_every_situation():
    cells = list(situation_cells(JOB, HOUR, MAKERS))
    assert len(cells) == len(situations(JOB)) * len(MAKERS)
    unseen = [cell for cell in cells if cell.strategy == "not noticed"]
    assert {cell.policy for cell in unseen} == {"checkpoint", "ft-hsdp", "recycle"}
    assert all(0 <= cell.rate <= 1 for cell in cells)
