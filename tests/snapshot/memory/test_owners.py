"""Memory of the dead is given back, memory of the living never touched."""

import os
import subprocess
import sys

import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import chunk_checksums
from holdfast.snapshot.memory.arena import Arena, ArenaLayout, LayoutEntry, Version
from holdfast.snapshot.memory.owners import JobLock, adopt, arena_name, clean, files_of, remove
from support.held import held, new_since

LAYOUT = ArenaLayout((LayoutEntry("loop", "", "other", (), "uint8", 5),), worker="n0.g0", node="n0")

AGENT = """
import sys
from pathlib import Path
from holdfast.snapshot.memory.arena import Arena, LayoutEntry, ArenaLayout, Version
from holdfast.snapshot.layout import chunk_checksums
from holdfast.snapshot.memory.owners import JobLock, arena_name
folder, job = Path(sys.argv[1]), sys.argv[2]
lock = JobLock(job, folder) if sys.argv[3] == "lock" else None
layout = ArenaLayout((LayoutEntry("loop", "", "other", (), "uint8", 5),), worker="n0.g0", node="n0")
arena = Arena.create(arena_name(job, layout), layout, folder)
slot = arena.begin(Version(4, 2))
slot.bytes("loop")[:] = b"state"
slot.seal({"loop": chunk_checksums(slot.bytes("loop"), layout.chunk_bytes)})
print("ready", flush=True)
input()
"""


@pytest.fixture
def agent(tmp_path):
    """Starts real agents, as far as arenas are concerned; what is left of them is killed."""
    started = []

    def start(job="job-a", lock="lock"):
        process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(tmp_path), job, lock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def kill(process):
    process.kill()
    process.communicate()


@pytest.mark.process
@pytest.mark.slow
def test_a_killed_agent_is_succeeded(agent, tmp_path):
    first = agent()
    with pytest.raises(HoldfastError, match=f"belongs to process {first.pid}, which lives"):
        adopt("job-a", tmp_path)
    kill(first)
    (arena,), complaints = adopt("job-a", tmp_path)
    assert complaints == []
    assert arena.newest().version == Version(4, 2)
    assert arena.newest().bytes("loop") == b"state"
    assert arena.owner[0] == os.getpid()
    arena.close()
    # The successor owns it now: it is not cleaned away.
    assert clean(tmp_path) == []
    assert remove("job-a", tmp_path) == ["holdfast-job-a-n0.g0", "holdfast-job-a.lock"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.slow
def test_only_the_dead_are_cleaned_away(agent, tmp_path):
    dead, living = agent("dead"), agent("living", "no lock")
    spared = agent("spared")
    assert clean(tmp_path) == []
    kill(dead)
    kill(spared)
    with JobLock("dead", tmp_path):  # say, a worker or the launcher of the job
        assert clean(tmp_path, spare=["spared"]) == []
    removed = clean(tmp_path, spare=["spared"])
    assert removed == ["holdfast-dead-n0.g0", "holdfast-dead.lock"]
    assert [path.name for path in files_of("living", tmp_path)] == ["holdfast-living-n0.g0"]
    assert [path.name for path in files_of("spared", tmp_path)] == ["holdfast-spared-n0.g0"]
    assert living.poll() is None


def test_a_number_used_again_is_not_the_same_process(tmp_path):
    arena = Arena.create(arena_name("job", LAYOUT), LAYOUT, tmp_path)
    assert clean(tmp_path) == []
    os.pwrite(arena.fd, bytes(8), 40 + 8)  # the owner's start: another process had our number
    arena.close()
    assert clean(tmp_path) == ["holdfast-job-n0.g0", "holdfast-job.lock"]


def test_half_made_arenas_go_too(tmp_path):
    (tmp_path / "holdfast-job-n0.g0.part").write_bytes(b"")
    (tmp_path / "holdfast-job-n0.g1").write_bytes(b"no arena")
    assert len(clean(tmp_path)) == 3
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_stay(tmp_path):
    names = ["sem.mp-x", "holdfast-", "holdfast-x", "psm_1"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert clean(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_damaged_arenas_are_reported_and_left(tmp_path):
    (tmp_path / "holdfast-job-n0.g1").write_bytes(b"no arena")
    arenas, complaints = adopt("job", tmp_path)
    assert arenas == []
    assert len(complaints) == 1
    assert "holdfast-job-n0.g1" in complaints[0]
    assert (tmp_path / "holdfast-job-n0.g1").exists()


def test_jobs_with_similar_names_are_apart(tmp_path):
    for job in ("a", "a-b", "a-b-c"):
        Arena.create(arena_name(job, LAYOUT), LAYOUT, tmp_path).close()
    assert [path.name for path in files_of("a-b", tmp_path)] == ["holdfast-a-b-n0.g0"]
    remove("a", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_plans_and_copies_have_names_of_their_own():
    assert arena_name("job", LAYOUT) == "holdfast-job-n0.g0"
    planned = msgspec.structs.replace(LAYOUT, plan="0123456789abcdef")
    assert arena_name("job", planned) == "holdfast-job-n0.g0~01234567"
    copy = msgspec.structs.replace(planned, node="n1")
    assert arena_name("job", copy) == "holdfast-job-n0.g0@n1~01234567"
    for job in ("", "a/b", "a b"):
        with pytest.raises(HoldfastError, match="no name for a job"):
            arena_name(job, LAYOUT)


def test_a_lock_taken_on_a_removed_file_is_taken_again(tmp_path, monkeypatch):
    """A cleaner may remove the file between opening and locking it."""
    import fcntl

    real, calls = fcntl.flock, []

    def flock(fd, how):
        if not calls:
            (tmp_path / "holdfast-job.lock").unlink()
        calls.append(how)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    before = held()
    with JobLock("job", tmp_path):
        assert len(calls) == 2
        assert (tmp_path / "holdfast-job.lock").exists()
    assert new_since(before) == []


def test_an_adopted_arena_is_written_on(tmp_path):
    made = Arena.create(arena_name("job", LAYOUT), LAYOUT, tmp_path)
    made.begin(Version(1, 0))
    made.close()
    (arena,), _ = adopt("job", tmp_path)
    arena.abandon()
    slot = arena.begin(Version(2, 0))
    slot.seal({"loop": chunk_checksums(slot.bytes("loop"), LAYOUT.chunk_bytes)})
    assert arena.newest().version == Version(2, 0)
    arena.close()
