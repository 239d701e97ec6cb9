"""Memory stays where it holds what nothing else does, and goes otherwise."""

import uuid

import pytest

from holdfast.observe.run_directory import create_run_directory
from holdfast.plan.build import regular_plan
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.launch.run_memory import KeptMemory, RunMemory, unsaved
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.disk.checkpoints import Marker, publish
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.memory.job_memory import arena_files, node_jobs
from holdfast.snapshot.memory.node_arenas import remove_all
from holdfast.snapshot.memory.owners import arena_name
from holdfast.snapshot.share import plan_shares
from support.random_plans import make_units
from support.snapshots import fill_slot, random_state

PLAN = regular_plan(make_units(2), replicas=2, micro_batches=2, devices_per_node=1)


@pytest.fixture
def directory(tmp_path):
    directory = create_run_directory(str(tmp_path / "run"), "x")
    yield directory
    if (directory / "shared_memory").is_file():
        remove_all(node_jobs((directory / "shared_memory").read_text()))


def job(**snapshot):
    return prepare_job(
        JobConfig(job=JobSection(steps=3), snapshot=SnapshotSection(**{"every": 1, **snapshot}))
    )


def fill(memory: str, version: Version) -> int:
    """All nodes of a small plan have a version; the bytes of it."""
    for layout in plan_shares(PLAN, chunk_bytes=64, other_bytes=16).layouts:
        owner = node_job(memory, layout.node)
        arena = Arena.create(arena_name(owner, layout), layout)
        slot = arena.begin(version)
        slot.seal(fill_slot(slot, random_state(PLAN)))
        arena.close()
    return sum(path.stat().st_size for path in arena_files(memory))


def test_the_next_run_has_the_same_name(directory):
    with RunMemory(job(), directory) as first:
        assert len(first.name) == 16
        assert node_jobs(first.name) == [node_job(first.name, "n0")]
    assert node_jobs(first.name) == []
    with RunMemory(job(), directory) as second:
        assert second.name == first.name
    with RunMemory(job(every=0), directory) as none:
        assert (none.name, none.has_unsaved) == ("", False)


def test_a_version_that_is_on_no_disk_stays(directory):
    with RunMemory(job(), directory) as memory:
        size = fill(memory.name, Version(7, 1))
        assert memory.has_unsaved
        assert memory.settle() == KeptMemory(7, size)
    assert len(arena_files(memory.name)) == 2
    with RunMemory(job(), directory) as again:
        assert again.has_unsaved
        again.is_useless = True
    assert node_jobs(memory.name) == []


def test_a_version_that_is_on_disk_goes(directory):
    partial = directory / "checkpoints" / "step-7.part"
    partial.mkdir(parents=True)
    publish(partial, Marker(Version(7, 1), "", {}))
    with RunMemory(job(), directory) as memory:
        fill(memory.name, Version(7, 1))
        assert unsaved(memory.name, directory / "checkpoints") is None
    assert node_jobs(memory.name) == []


def test_without_memory_nothing_is_unsaved(tmp_path):
    assert unsaved("", tmp_path) is None
    assert unsaved(uuid.uuid4().hex, tmp_path) is None
