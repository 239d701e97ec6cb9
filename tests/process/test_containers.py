"""Machines that lack something, as containers do: every lack has its line, and never is a job run
without protection that was asked for and no word about it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import container_runs

pytestmark = [pytest.mark.process, pytest.mark.chaos, pytest.mark.timeout(180)]

PROTECTED = (
    "protected against the loss of any one worker; any one node; all workers; not: all nodes"
)
PROTECTED_BY_DISK = PROTECTED.replace("not: ", "")


def can_unshare() -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    return (
        subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
    )


def run_cases(folder: Path, *names: str) -> dict:
    if not can_unshare():
        pytest.skip("mount namespaces need root and unshare")
    program = Path(container_runs.__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    found = subprocess.run(
        ["unshare", "-m", sys.executable, str(program), str(folder), *names],
        capture_output=True,
        text=True,
        timeout=170,
        env=environment,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    names = ("roomy", "shm_1m", "shm_64m", "small_disk", "read_only", "low_limit", "full_disk")
    return run_cases(tmp_path_factory.mktemp("containers"), *names, "few_descriptors")


def starting(case, word):
    return [line for line in case["lines"] if line.startswith(word)]


def test_with_room_for_all_there_is_nothing_to_complain_of(cases):
    found = cases["roomy"]
    (line,) = starting(found, "protection:")
    assert "snapshots of every step in /dev/shm (3 versions, with parity" in line
    assert starting(found, "protected") == [PROTECTED, PROTECTED_BY_DISK]  # the last checkpoint
    assert not starting(found, "note:")
    assert not starting(found, "lacking:")
    assert found["outcome"] == "finished"
    assert found["left"] == []


@pytest.mark.parametrize(("name", "free"), [("shm_1m", "1.0 MB"), ("shm_64m", "67.1 MB")])
def test_little_shared_memory(cases, name, free):
    """All workers die, and the job goes on from the folder on disk."""
    found = cases[name]
    (line,) = starting(found, "note:")
    assert line.startswith(f"note: /dev/shm has {free} free, and snapshots need ")
    assert f"{name}/run/memory, where each costs" in line
    assert "containers: --shm-size" in line
    (origins,) = found["restores"]
    assert set(origins) <= {"local memory", "peer memory", "parity"}
    assert (found["outcome"], found["steps"]) == ("finished", 100)
    assert PROTECTED in found["lines"]
    assert found["left"] == []


def test_a_disk_of_10_mb(cases):
    found = cases["small_disk"]
    (line,) = starting(found, "lacking:")
    assert "has 10.5 MB free for checkpoints of 13.8 MB each: none fits" in line
    assert line in found["end"]  # and in the report
    assert len(starting(found, "checkpoint of step 8 not written")) == 1
    assert (found["outcome"], found["metrics"]) == ("finished", list(range(8)))
    assert "snapshot.strict = true" in found["strict"]["error"]
    assert found["strict"]["written"] == []


def test_a_run_directory_that_cannot_be_written_to(cases):
    found = cases["read_only"]
    assert found["error"].endswith("read_only cannot be written to; choose another job.run_dir")
    assert found["lines"] == []


def test_a_limit_on_memory_that_is_too_low(cases):
    found = cases["low_limit"]
    (line,) = starting(found, "lacking: snapshot.memory_limit_bytes = 1000, and the least")
    assert "no snapshots and no checkpoints; raise it to" in line
    assert starting(found, "protected")[0].endswith("not: all workers, all nodes")


def test_64_descriptors(cases):
    found = cases["few_descriptors"]
    (line,) = starting(found, "lacking: the limit of open files is 64, and 2 workers need 80")
    assert line.endswith("ulimit -n 80")
    assert found["outcome"] == "finished"
    assert "snapshot.strict = true" in found["strict"]["error"]


def test_a_disk_that_is_full_for_a_while(cases):
    found = cases["full_disk"]
    assert (found["outcome"], found["exit_code"], found["steps"]) == ("finished", 0, 300)
    assert found["metrics"] == list(range(300))
    assert found["torn"] == []
    assert len(starting(found, "the disk takes nothing (No space left on device")) == 1
    assert len(starting(found, "the disk takes lines again")) == 1
    assert any(line.startswith("checkpoint:") for line in found["lines"])
    assert len(found["final"]) == 2
