"""A job on the nodes of a Ray cluster: an actor is killed, a node goes and another one comes, and
it ends as the one on a single machine does.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.host_jobs import Outcome, assert_equal, events, run_plain, steps_done, wait_for
from support.host_jobs import write_job as write_host_job

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(900),
    # Of Ray's own modules.
    pytest.mark.filterwarnings("ignore"),
]

NET = '[net]\ninterface = "lo"\n'


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Outcome:
    return run_plain(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def start(cluster, tmp_path):
    """Starts the driver of a job, which does not outlive the test."""
    jobs: list[RayJob] = []

    def begin() -> RayJob:
        jobs.append(RayJob(cluster, tmp_path))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


class RayJob:
    def __init__(self, cluster, folder: Path) -> None:
        job = write_host_job(folder, NET, every=1)
        settings = ["--snapshot.persist_every_s", "600", "--emulate.unit_ms", "60"]
        self.run_dir, self.log = folder / "runs" / "run", folder / "driver.log"
        with self.log.open("wb") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "holdfast.ray", str(job), *settings],
                cwd=folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1"},
            )

    def wait_for_steps(self, number: int) -> None:
        def there() -> bool:
            assert self._driver.poll() is None, self.log.read_text()
            return steps_done(self.run_dir) >= number

        wait_for(there, f"step {number}")

    def finish(self) -> Outcome:
        assert self._driver.wait(400) == 0, self.log.read_text()
        return Outcome(self.run_dir)

    def close(self) -> None:
        self._driver.kill()
        self._driver.wait()

    def happened(self, kind: str) -> list:
        return [event for event in events(self.run_dir) if type(event).__name__ == kind]


def actors() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if _line(p).startswith("ray::AgentActor")]


def _line(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())


def test_an_actor_is_killed_and_ray_starts_it_again(cluster, start, undisturbed) -> None:
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    job = start()
    job.wait_for_steps(4)
    killed = actors()[0]
    killed.send_signal(signal.SIGKILL)
    assert_equal(job.finish(), undisturbed)
    assert job.happened("WorkerLost")
    assert len(job.happened("HostJoined")) == 4
    assert actors() == []


def test_a_node_goes_and_another_one_comes(cluster, start, undisturbed) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    job = start()
    job.wait_for_steps(4)
    cluster.remove_node(nodes[1], allow_graceful=False)
    wait_for(lambda: job.happened("WorkerLost"), "a verdict")
    cluster.add_node(num_cpus=1)
    assert_equal(job.finish(), undisturbed)
    assert len(job.happened("HostJoined")) == 4


@pytest.fixture
def dashboard(monkeypatch):
    """A cluster that takes Ray jobs, and the address for them."""
    import ray
    from ray.cluster_utils import Cluster

    # What a Ray job runs finds its programs where the cluster was started.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": port}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            found.add_node(num_cpus=1)
        yield f"http://127.0.0.1:{port}"
    finally:
        ray.shutdown()
        found.shutdown()


def test_it_is_submitted_as_a_ray_job(dashboard, tmp_path, undisturbed) -> None:
    from ray.job_submission import JobSubmissionClient

    run_dir = tmp_path / "run"
    job = write_host_job(tmp_path, NET, every=1)
    said = subprocess.run(
        [
            *(sys.executable, "-m", "holdfast", "submit", str(job), "--to", "ray"),
            *("--with", f"address={dashboard}", "--job.run_dir", str(run_dir)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    client = JobSubmissionClient(dashboard)
    (submitted,) = client.list_jobs()
    assert submitted.submission_id in said

    def is_over() -> bool:
        return client.get_job_status(submitted.submission_id).is_terminal()

    wait_for(is_over, "the end of the Ray job")
    status = client.get_job_status(submitted.submission_id)
    assert status == "SUCCEEDED", client.get_job_logs(submitted.submission_id)
    assert_equal(Outcome(run_dir), undisturbed)
    assert actors() == []


def test_a_cluster_that_is_too_small_is_said(cluster, tmp_path) -> None:
    import ray

    from holdfast.errors import HoldfastError
    from holdfast.ray import train

    job = write_host_job(tmp_path, NET)
    ray.init(address=cluster.address)
    with pytest.raises(HoldfastError, match="needs 3 nodes of Ray"):
        train(job, gather_within_s=1)
