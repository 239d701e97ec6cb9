"""Memory of ended runs is listed by run and removed on request; that of others is not touched."""

from pathlib import Path

import pytest

from holdfast.snapshot.memory.arena import Arena, ArenaLayout, LayoutEntry
from holdfast.snapshot.memory.leftovers import find_left, remove_left
from holdfast.snapshot.memory.owners import JobLock, arena_name

LAYOUT = ArenaLayout((LayoutEntry("loop", "", "other", (), "uint8", 5),), worker="n0.g0", node="n0")


@pytest.fixture
def folder(tmp_path):
    """Two nodes of one run, and one of another whose directory is not known; all dead."""
    for job, note in (("a.n0", "/runs/a"), ("a.n1", "/runs/a"), ("b.n0", "")):
        JobLock(job, tmp_path, note=note).release()
        name = arena_name(job, LAYOUT)
        Arena.create(name, LAYOUT, tmp_path).close()
        own(tmp_path / name, pid=4194305)
    return tmp_path


def own(path: Path, pid: int) -> None:
    """As if that process had made it."""
    from holdfast.snapshot.memory.arena_file import HEAD

    with path.open("r+b") as file:
        file.seek(HEAD.size)
        file.write(pid.to_bytes(8, "little") + (1).to_bytes(8, "little"))


def test_by_run(folder):
    found = {left.run_dir: left for left in find_left(folder)}
    assert found["/runs/a"].jobs == ("a.n0", "a.n1")
    assert len(found["/runs/a"].files) == 4
    assert found["/runs/a"].num_bytes > 0
    assert found[""].jobs == ("b.n0",)
    assert find_left(folder, Path("/runs/a")) == [found["/runs/a"]]
    assert find_left(folder, Path("/runs/other")) == []


def test_what_is_removed_is_gone_and_nothing_else(folder):
    (left,) = find_left(folder, Path("/runs/a"))
    assert len(remove_left(left)) == 4
    assert [one.jobs for one in find_left(folder)] == [("b.n0",)]


def test_memory_that_was_taken_up_meanwhile_stays(folder):
    (left,) = find_left(folder, Path("/runs/a"))
    with JobLock("a.n0", folder), JobLock("a.n1", folder):
        assert remove_left(left) == []
        assert find_left(folder, Path("/runs/a")) == []
    assert find_left(folder, Path("/runs/a")) == [left]
