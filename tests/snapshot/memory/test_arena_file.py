"""The file behind an arena: ours and whole, or refused."""

import os
import subprocess
import sys

import pytest

from holdfast.errors import HoldfastError
from holdfast.snapshot.memory.arena import Arena, ArenaLayout, LayoutEntry
from holdfast.snapshot.memory.arena_file import arena_bytes, process_start

ENTRY = LayoutEntry("w|0:8|parameter", "w", "parameter", ((0, 8),), "float32", 32)
LAYOUT = ArenaLayout((ENTRY,), chunk_bytes=24, worker="n0.g0", node="n0")


@pytest.fixture
def arena(tmp_path):
    made = Arena.create("holdfast-test-n0.g0", LAYOUT, tmp_path)
    yield made
    made.close()


def test_a_name_is_used_once(arena, tmp_path):
    with pytest.raises(HoldfastError, match="exists"):
        Arena.create("holdfast-test-n0.g0", LAYOUT, tmp_path)


def test_its_size_is_known_beforehand(arena):
    assert os.fstat(arena.fd).st_size == arena_bytes(LAYOUT) == arena.memory.nbytes


@pytest.mark.parametrize("offset", [0, 9, 30, 90, 200])
def test_a_damaged_head_or_layout_is_refused(arena, tmp_path, offset):
    """Whatever is hit, it is an error with words. (Owner and persisted version are not covered.)"""
    path = tmp_path / "holdfast-test-n0.g0"
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x20]))
    with pytest.raises(HoldfastError):
        Arena.open(path)


def test_a_foreign_or_cut_file_is_refused(arena, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"x" * 4096)
    with pytest.raises(HoldfastError, match="no arena"):
        Arena.open(foreign)
    path = tmp_path / "holdfast-test-n0.g0"
    os.truncate(path, 4096)
    with pytest.raises(HoldfastError, match="4096 bytes, its head says"):
        Arena.open(path)


def test_too_much_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(fd, start, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HoldfastError, match="No space left"):
        Arena.create("holdfast-test-n0.g0", LAYOUT, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_processes_are_told_apart():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        assert process_start(child.pid) >= process_start(os.getpid()) > 0
        child.stdin.close()
        # Not reaped yet, but ended: a zombie owns nothing.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_start(child.pid) == 0
    assert process_start(child.pid) == 0
