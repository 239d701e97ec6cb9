"""A job that Slurm starts: hosts are lost, the job is cancelled, preempted and queued again, and it
ends as the one on a single machine does.
"""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from holdfast.observe.run_directory import SHARED_MEMORY
from support.host_jobs import (
    STEPS,
    Outcome,
    assert_equal,
    events,
    run_plain,
    steps_done,
    wait_for,
    write_job,
)
from support.hosts import HOLDFAST
from support.slurm import Slurm, slurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

NET = '[net]\ninterface = "lo"\n'


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Outcome:
    return run_plain(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm"), 4) as found:
        yield found


@pytest.fixture
def nothing_left(cluster, tmp_path):
    yield
    cluster.call("scancel", "--partition=low", check=False)
    wait_for(lambda: not cluster.call("squeue", "-h"), "an empty queue", 60)
    wait_for(lambda: not cluster.tasks(), "the end of all processes", 60)
    names = [path.read_text() for path in tmp_path.glob(f"runs/*/{SHARED_MEMORY}")]
    assert [path for path in os.listdir("/dev/shm") if any(name in path for name in names)] == []


class SlurmJob:
    def __init__(self, cluster: Slurm, folder: Path, *settings: str) -> None:
        self.cluster = cluster
        job = write_job(folder, NET, every=1)
        options = ["--to", "slurm", "--with", "time=20", "--json"]
        more = ["--snapshot.persist_every_s", "600", "--emulate.unit_ms", "20", *settings]
        text = cluster.call(*HOLDFAST, "submit", str(job), *options, *more, cwd=folder)
        self.number = json.loads(text)["job_id"]
        self.run_dir = folder / "runs" / f"run-{self.number}"
        self.output = folder / f"run-{self.number}.out"

    def wait_for_steps(self, number: int) -> None:
        def there() -> bool:
            state = self.cluster.job(self.number)["JobState"]
            assert state in ("PENDING", "CONFIGURING", "RUNNING"), self.text()
            return steps_done(self.run_dir) >= number

        wait_for(there, f"step {number}")

    def text(self) -> str:
        return self.output.read_text() if self.output.is_file() else ""

    def finish(self) -> Outcome:
        found = self.cluster.wait_until(self.number, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        assert found["JobState"] == "COMPLETED", self.text()
        return Outcome(self.run_dir)

    def happened(self, kind: str) -> list:
        return [event for event in events(self.run_dir) if type(event).__name__ == kind]


def agent_of(cluster: Slurm, host: str) -> psutil.Process:
    """The process that is this host's agent."""
    for process in cluster._of(host):
        words = process.cmdline()
        if "agent" in words and words[0].endswith("python"):
            return process
    raise AssertionError(f"no agent on {host}")


@pytest.mark.usefixtures("nothing_left")
def test_slurm_starts_a_job(cluster, tmp_path, undisturbed) -> None:
    job = SlurmJob(cluster, tmp_path)
    assert_equal(job.finish(), undisturbed)
    assert len(job.happened("HostJoined")) == 3
    assert cluster.job(job.number)["ExitCode"] == "0:0"


@pytest.mark.usefixtures("nothing_left")
def test_a_lost_host_ends_neither_step_nor_job(cluster, tmp_path, undisturbed) -> None:
    job = SlurmJob(cluster, tmp_path)
    job.wait_for_steps(6)
    cluster.lose("h2")
    found = cluster.job(job.number)
    assert found["JobState"] == "RUNNING"
    assert found["NumNodes"] == "2"
    try:
        assert_equal(job.finish(), undisturbed)
    finally:
        cluster.back("h2")
    assert job.happened("WorkerLost")
    assert cluster.job(job.number)["Restarts"] == "0"


@pytest.mark.usefixtures("nothing_left")
def test_a_killed_agent_is_started_again_on_its_host(cluster, tmp_path, undisturbed) -> None:
    job = SlurmJob(cluster, tmp_path)
    job.wait_for_steps(6)
    agent_of(cluster, "h1").send_signal(signal.SIGKILL)
    assert_equal(job.finish(), undisturbed)
    assert "the agent on h1 ended with 137; it is started again" in job.text()
    assert "h1 is n" in job.text()


@pytest.mark.usefixtures("nothing_left")
def test_a_spare_host_takes_the_place_of_a_lost_one(cluster, tmp_path, undisturbed) -> None:
    job = SlurmJob(cluster, tmp_path, "--spare-hosts", "1")
    job.wait_for_steps(6)
    joined = [event.reason.split()[0] for event in job.happened("HostJoined")]
    lost = next(host for host in joined if host != "h0")
    cluster.lose(lost)
    try:
        assert_equal(job.finish(), undisturbed)
    finally:
        cluster.back(lost)
    assert len(job.happened("HostJoined")) == 4


@pytest.mark.usefixtures("nothing_left")
def test_scancel_leaves_a_checkpoint_and_does_not_requeue(cluster, tmp_path, undisturbed) -> None:
    job = SlurmJob(cluster, tmp_path)
    job.wait_for_steps(6)
    cluster.call("scancel", job.number)
    cluster.wait_until(job.number, "CANCELLED")
    wait_for(lambda: not cluster.tasks(), "the end of all processes", 60)
    done = steps_done(job.run_dir)
    assert 6 <= done < STEPS
    assert (job.run_dir / "checkpoints" / f"step-{done}").is_dir(), job.text()
    again = SlurmJob(cluster, tmp_path, "--job.run_dir", str(job.run_dir))
    again.run_dir = job.run_dir
    assert_equal(again.finish(), undisturbed)


@pytest.mark.usefixtures("nothing_left")
def test_a_preempted_job_is_queued_again_and_goes_on(cluster, tmp_path, undisturbed) -> None:
    job = SlurmJob(cluster, tmp_path, "--emulate.unit_ms", "100")
    job.wait_for_steps(6)
    command = ["sbatch", "--parsable", "-p", "high", "-N2", "-o", "/dev/null", "--wrap", "sleep 1"]
    other = cluster.call(*command).strip()
    cluster.wait_until(other, "COMPLETED")
    assert_equal(job.finish(), undisturbed)
    assert cluster.job(job.number)["Restarts"] == "1"
    assert "stopped with a checkpoint; the job is queued again" in job.text()
    (restored,) = job.happened("Restored")
    assert restored.steps_redone == 0


@pytest.mark.usefixtures("nothing_left")
def test_the_warning_before_the_time_limit_requeues(cluster, tmp_path, undisturbed) -> None:
    job = SlurmJob(cluster, tmp_path)
    job.wait_for_steps(6)
    cluster.call("scancel", "--signal=USR1", "--batch", job.number)  # what --signal=B:USR1 sends
    assert_equal(job.finish(), undisturbed)
    assert cluster.job(job.number)["Restarts"] == "1"


@pytest.mark.usefixtures("nothing_left")
def test_the_first_host_is_lost_with_the_launcher(cluster, tmp_path, undisturbed) -> None:
    """Training goes on under another coordinator until a host sees it and queues the job again."""
    job = SlurmJob(cluster, tmp_path, "--emulate.unit_ms", "100")
    job.wait_for_steps(6)
    cluster.lose("h0")
    cluster.back("h0")
    assert_equal(job.finish(), undisturbed)
    assert cluster.job(job.number)["Restarts"] == "1"
    (restored,) = [event for event in job.happened("Restored") if event.goes_on]
    # A stop that comes before the lost host counts as lost cannot complete the step in flight.
    assert restored.steps_redone <= 1


@pytest.mark.usefixtures("nothing_left")
def test_after_all_processes_were_killed_it_goes_on_from_memory(
    cluster, tmp_path, undisturbed
) -> None:
    job = SlurmJob(cluster, tmp_path)
    job.wait_for_steps(6)
    cluster.kill_tasks()
    cluster.wait_until(job.number, "FAILED", "NODE_FAIL")
    cluster.call("scontrol", "requeue", job.number)
    assert_equal(job.finish(), undisturbed)
    (restored,) = job.happened("Restored")
    assert not restored.bytes_by_origin.get("storage")


@pytest.mark.usefixtures("nothing_left")
def test_a_job_that_cannot_begin_is_not_queued_again(cluster, tmp_path) -> None:
    job = SlurmJob(cluster, tmp_path, "--net.interface", "none0")
    found = cluster.wait_until(job.number, "FAILED")
    assert found["ExitCode"] == "93:0"
    assert found["Restarts"] == "0"
    assert "without a new step: the job is not queued again" in job.text()
