"""What this machine has, and the settings a job gets."""

from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import create_run_directory
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.resources import (
    available_memory,
    free_bytes,
    grant,
    is_in_memory,
    provide_for,
)


def test_by_default_a_job_is_protected(tiny_job):
    found = provide_for(tiny_job(snapshot=SnapshotSection()))
    assert (found.every, found.lacking) == (1, ())
    assert "checkpoints every 600 s" in found.summary


def test_a_model_that_does_not_fit_is_refused(tiny_job, monkeypatch):
    monkeypatch.setattr("holdfast.runtime.launch.resources.available_memory", lambda: 10_000)
    with pytest.raises(HoldfastError, match=r"parameters, whose state needs .* of memory, and"):
        provide_for(tiny_job(snapshot=SnapshotSection()))


def test_without_shared_memory_the_run_directory_is_used(tiny_job, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "holdfast.runtime.launch.resources.SHARED_MEMORY", tmp_path / "there-is-none"
    )
    job = tiny_job(snapshot=SnapshotSection())
    found = provide_for(job)
    assert found.place is not None
    assert found.place.is_disk
    directory = create_run_directory(job.config.job.run_dir, "run")
    granted = grant(job, found, directory)
    assert granted.config.snapshot.memory_folder == str(directory / "memory")
    assert Path(granted.config.snapshot.memory_folder).is_dir()
    assert granted.config.snapshot.every == 1


def test_a_folder_that_is_named_is_used(tiny_job, tmp_path):
    job = tiny_job(snapshot=SnapshotSection(memory_folder=str(tmp_path)))
    found = provide_for(job)
    assert found.place is not None
    assert found.place.path == str(tmp_path)
    granted = grant(job, found, create_run_directory(job.config.job.run_dir, "run"))
    assert granted.config.snapshot.memory_folder == str(tmp_path)


def test_a_strict_job_is_refused(tiny_job, tmp_path):
    lacking = SnapshotSection(memory_limit_bytes=1, strict=True)
    with pytest.raises(HoldfastError, match=r"memory_limit_bytes = 1, .*strict = true"):
        provide_for(tiny_job(snapshot=lacking))
    job = tiny_job(snapshot=SnapshotSection(memory_limit_bytes=1))
    found = provide_for(job)
    assert found.lacking
    directory = create_run_directory(job.config.job.run_dir, "run")
    assert grant(job, found, directory).config.snapshot.every == 0
    provide_for(tiny_job(snapshot=SnapshotSection(strict=True)))


def test_what_there_is(tmp_path):
    assert free_bytes(tmp_path) > 0
    assert free_bytes(tmp_path / "nothing") == 0
    assert available_memory() > 0
    assert not is_in_memory(Path("/proc"))
    if Path("/dev/shm").is_dir():
        assert is_in_memory(Path("/dev/shm/x"))
