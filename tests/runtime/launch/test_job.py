import msgspec

from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection
from holdfast.runtime.launch.job import resolve_backend


def test_every_worker_with_a_role_in_any_plan(tiny_job):
    job = tiny_job(changes=[ChangeSection(at_step=1, parallel=ParallelSection(replicas=2))])
    assert job.workers == ("n0.g0", "n0.g1")
    assert job.num_parameters > 1000


def test_the_backend_follows_the_device():
    config = JobConfig(job=JobSection(steps=1))
    assert resolve_backend(config) == "gloo"
    cuda = msgspec.structs.replace(config, job=JobSection(steps=1, device="cuda"))
    assert resolve_backend(cuda) == "nccl"
    given = msgspec.structs.replace(config, job=JobSection(steps=1, device="cuda", backend="gloo"))
    assert resolve_backend(given) == "gloo"
