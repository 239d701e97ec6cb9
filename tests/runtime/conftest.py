"""Jobs small enough to run in a second, and a look at what they leave behind."""

import os

import psutil
import pytest

from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import RecoverySection, SnapshotSection
from holdfast.runtime.launch.prepare import prepare_job
from support.held import held, new_since


@pytest.fixture
def nothing_left(fork_server):
    """No worker outlives its test, and no file or thread stays here."""
    before = held()
    yield
    for pid in (fork_server.pid, fork_server.light.pid):
        assert psutil.Process(pid).children(recursive=True) == []
    assert new_since(before) == []


@pytest.fixture
def tiny_job(tmp_path):
    """A job by the keys of its sections, with a model of two blocks."""

    def make(
        steps=4,
        changes=(),
        parallel=None,
        data=None,
        recovery=None,
        snapshot=None,
        faults=(),
        **job,
    ):
        job.setdefault("run_dir", os.fspath(tmp_path / "run"))
        job.setdefault("timeout_s", 30.0)
        job.setdefault("threads", 1)
        return prepare_job(
            JobConfig(
                job=JobSection(steps=steps, **job),
                model=ModelSection(num_layers=2, dim=32, hidden=64, num_heads=4, num_kv_heads=2),
                data=data or DataSection(seq_len=8, micro_batches=4),
                parallel=parallel or ParallelSection(),
                changes=tuple(changes),
                recovery=recovery or RecoverySection(plan="reroute"),  # no process of the planner
                snapshot=snapshot or SnapshotSection(every=0),
                faults=tuple(faults),
            )
        )

    return make


@pytest.fixture(autouse=True)
def forgotten(request):
    """A job that fails leaves its memory for the next run, and there is none."""
    from holdfast.snapshot.memory.job_memory import node_jobs
    from holdfast.snapshot.memory.node_arenas import remove_all

    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for path in folder.rglob("shared_memory") if folder is not None else ():
        remove_all(node_jobs(path.read_text()))
