"""Arenas: what is committed stays whole, whatever happens to the writer."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import chunk_checksums
from holdfast.snapshot.memory.arena import Arena, ArenaLayout, LayoutEntry, Version
from holdfast.snapshot.memory.arena_file import process_start
from support.held import held, new_since

LAYOUT = ArenaLayout(
    entries=(
        LayoutEntry("w|0:8|parameter", "w", "parameter", ((0, 8),), "float32", 32),
        LayoutEntry("w|0:8|exp_avg", "w", "exp_avg", ((0, 8),), "float32", 32),
        LayoutEntry("loop", "", "other", (), "uint8", 5),
    ),
    chunk_bytes=24,
)


@pytest.fixture
def arena(tmp_path):
    made = Arena.create("holdfast-test-n0.g0", LAYOUT, tmp_path)
    yield made
    made.close()


def fill(slot, value):
    for entry in slot.layout.entries:
        slot.bytes(entry.key)[:] = bytes([value]) * entry.num_bytes


def seal(slot):
    size = slot.layout.chunk_bytes
    slot.seal({e.key: chunk_checksums(slot.bytes(e.key), size) for e in slot.layout.entries})


def write(arena, version, value, complete=None):
    slot = arena.begin(version, complete)
    fill(slot, value)
    seal(slot)
    return slot


def test_a_new_arena_is_empty(arena):
    assert arena.newest() is None
    assert arena.in_progress() is None
    assert arena.versions() == {}


def test_what_was_sealed_is_there(arena):
    write(arena, Version(3, 1), 7)
    newest = arena.newest()
    assert newest.version == Version(3, 1)
    assert newest.bytes("loop") == bytes([7]) * 5
    assert torch.equal(newest.tensor("loop"), torch.full((5,), 7, dtype=torch.uint8))
    assert newest.checksums() == {
        e.key: chunk_checksums(newest.bytes(e.key), 24) for e in LAYOUT.entries
    }


def test_two_versions_are_kept_and_the_older_is_overwritten(arena):
    write(arena, Version(1, 0), 1)
    write(arena, Version(2, 0), 2)
    assert sorted(arena.versions().values()) == [Version(1, 0), Version(2, 0)]
    slot = arena.begin(Version(3, 0))
    assert list(arena.versions().values()) == [Version(2, 0)]
    fill(slot, 3)
    assert arena.newest().bytes("loop") == bytes([2]) * 5
    seal(slot)
    assert arena.newest().version == Version(3, 0)


def test_the_version_known_complete_is_kept_even_if_it_is_not_the_newest(arena):
    write(arena, Version(1, 0), 1)
    write(arena, Version(2, 0), 2)
    arena.begin(Version(3, 0), complete=Version(1, 0))
    assert list(arena.versions().values()) == [Version(1, 0)]


def test_one_version_at_a_time(arena):
    arena.begin(Version(1, 0))
    with pytest.raises(HoldfastError, match=r"step 2 .* cannot begin: step 1 .* in progress"):
        arena.begin(Version(2, 0))
    arena.abandon()
    assert arena.in_progress() is None
    arena.begin(Version(2, 0))


def test_a_version_is_committed_once(arena):
    write(arena, Version(1, 0), 1)
    with pytest.raises(HoldfastError, match="already committed"):
        arena.begin(Version(1, 0))


def test_an_abandoned_slot_cannot_be_sealed(arena):
    slot = arena.begin(Version(1, 0))
    fill(slot, 1)
    arena.abandon()
    with pytest.raises(HoldfastError, match="not in progress any more"):
        seal(slot)
    assert arena.newest() is None


def test_committed_bytes_are_read_only(arena):
    slot = write(arena, Version(1, 0), 1)
    with pytest.raises(TypeError):
        slot.bytes("loop")[0] = 2


def test_every_entry_needs_its_checksums(arena):
    slot = arena.begin(Version(1, 0))
    with pytest.raises(HoldfastError, match=r"'w\|0:8\|parameter' needs 2 checksums, none given"):
        slot.seal({})
    with pytest.raises(HoldfastError, match="needs 2 checksums, 1 given"):
        slot.seal({"w|0:8|parameter": [1], "w|0:8|exp_avg": [1, 2], "loop": [3]})
    assert arena.newest() is None


def test_unknown_keys_are_refused(arena):
    with pytest.raises(HoldfastError, match="no entry 'x'"):
        arena.begin(Version(1, 0)).bytes("x")


def test_a_rollback_discards_what_came_after_or_beside(arena):
    write(arena, Version(6, 1), 1)
    write(arena, Version(7, 1), 2)
    arena.roll_back(Version(6, 1))
    assert list(arena.versions().values()) == [Version(6, 1)]
    write(arena, Version(7, 2), 3)
    arena.roll_back(Version(7, 3))
    assert list(arena.versions().values()) == [Version(6, 1)]


def test_a_later_epoch_is_newer_even_with_a_lower_step(arena):
    write(arena, Version(9, 1), 1)
    write(arena, Version(5, 2), 2)
    assert arena.newest().version == Version(5, 2)
    arena.begin(Version(6, 2))
    assert list(arena.versions().values()) == [Version(5, 2)]


@pytest.mark.parametrize("num_slots", [2, 3])
def test_a_pinned_version_is_not_overwritten(tmp_path, num_slots):
    arena = Arena.create("a", msgspec.structs.replace(LAYOUT, num_slots=num_slots), tmp_path)
    write(arena, Version(1, 0), 1)
    assert arena.pin(Version(1, 0))
    assert not arena.slot(Version(9, 9))
    for step in range(2, 8):
        write(arena, Version(step, 0), step, complete=Version(step - 1, 0))
        held = sorted(version.step for version in arena.versions().values())
        assert held == sorted({1, step} | ({step - 1} if num_slots == 3 else set()))
    assert arena.slot(Version(1, 0)).bytes("loop") == bytes([1]) * 5
    arena.unpin()
    write(arena, Version(8, 0), 8)
    assert arena.slot(Version(1, 0)) is None
    arena.close()


def test_only_what_is_there_is_pinned_and_only_one(arena):
    assert not arena.pin(Version(1, 0))
    write(arena, Version(1, 0), 1)
    write(arena, Version(2, 0), 2)
    assert arena.pin(Version(1, 0))
    assert arena.pin(Version(2, 0))
    write(arena, Version(3, 0), 3)
    assert sorted(version.step for version in arena.versions().values()) == [2, 3]


def test_it_is_found_again_by_descriptor_and_by_name(arena, tmp_path):
    write(arena, Version(4, 2), 9)
    other = Arena.attach(os.dup(arena.fd))
    third = Arena.open(tmp_path / "holdfast-test-n0.g0")
    for copy in (other, third):
        assert copy.layout == LAYOUT
        assert copy.newest().version == Version(4, 2)
        assert copy.owner == (os.getpid(), process_start(os.getpid()))
        copy.close()


def test_a_torn_slot_head_reads_as_empty(arena):
    write(arena, Version(1, 0), 1)
    write(arena, Version(2, 0), 2)
    number = next(n for n, version in arena.versions().items() if version == Version(2, 0))
    arena.memory[arena._places.heads[number] + 48] ^= 1
    assert arena.newest().version == Version(1, 0)


def test_layouts_that_contradict_themselves_are_refused(tmp_path):
    entry = LAYOUT.entries[0]
    with pytest.raises(HoldfastError, match="two entries"):
        Arena.create("x", ArenaLayout(entries=(entry, entry)), tmp_path)
    with pytest.raises(HoldfastError, match="0 bytes"):
        Arena.create("x", ArenaLayout(entries=(entry,), chunk_bytes=0), tmp_path)


def test_no_descriptor_is_left(tmp_path):
    before = held()
    for number in range(20):
        made = Arena.create(f"a{number}", LAYOUT, tmp_path)
        view = write(made, Version(1, 0), 1).tensor("loop")
        made.close()
        made.close()
        assert int(view.sum()) == 5
        del view, made
        Arena.open(tmp_path / f"a{number}").close()
    assert new_since(before) == []


Steps = st.lists(st.sampled_from(["begin", "seal", "abandon", "attach", "roll back"]), max_size=30)


@settings(max_examples=60, deadline=None)
@given(steps=Steps)
def test_the_newest_committed_version_is_never_lost(steps, tmp_path_factory):
    """Against a model that only remembers what was sealed."""
    folder = tmp_path_factory.mktemp("arena")
    arena = Arena.create("a", LAYOUT, folder)
    sealed, step, slot = [], 0, None
    for word in steps:
        if word == "begin" and slot is None:
            step += 1
            slot = arena.begin(Version(step, 0))
            fill(slot, step)
        elif word == "seal" and slot is not None:
            seal(slot)
            sealed.append(step)
            slot = None
        elif word == "abandon":
            arena.abandon()
            slot = None
        elif word == "roll back" and sealed and arena.slot(Version(sealed[-1], 0)):
            arena.roll_back(Version(sealed[-1], 0))
            slot = None
        elif word == "attach" and slot is None:
            arena.close()
            arena = Arena.open(folder / "a")
        newest = arena.newest()
        assert (newest.version.step if newest else 0) == (sealed[-1] if sealed else 0)
        if newest:
            assert newest.bytes("loop") == bytes([sealed[-1]]) * 5
    arena.close()


WRITER = """
import os, sys
from pathlib import Path
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.layout import chunk_checksums
arena = Arena.attach(int(sys.argv[1]))
print("ready", flush=True)
step = arena.newest().version.step
while True:
    step += 1
    slot = arena.begin(Version(step, 0))
    for entry in slot.layout.entries:
        slot.bytes(entry.key)[:] = bytes([step % 251]) * entry.num_bytes
    size = slot.layout.chunk_bytes
    slot.seal({e.key: chunk_checksums(slot.bytes(e.key), size) for e in slot.layout.entries})
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("big", [False, True], ids=["mostly sealing", "mostly copying"])
def test_a_writer_killed_anywhere_leaves_the_previous_version_whole(big):
    """Real shared memory, real processes, SIGKILL at an arbitrary moment, again and again."""
    size = 2**20 if big else 32
    count = 4 if big else 400
    entries = tuple(
        LayoutEntry(f"w{n}", f"w{n}", "parameter", ((0, size),), "uint8", size)
        for n in range(count)
    )
    name = f"holdfast-{uuid.uuid4().hex}-n0.g0"
    arena = Arena.create(name, ArenaLayout(entries, chunk_bytes=2**16))
    try:
        write(arena, Version(1, 0), 1)
        interrupted = 0
        for attempt in range(64):
            if attempt >= 8 and interrupted:
                break
            before = arena.newest().version
            _run_and_kill(arena, after=before.step + 1 + attempt % 8)
            newest = arena.newest()
            assert newest.version.step >= before.step + 1 + attempt % 8
            for key, wanted in newest.checksums().items():
                assert chunk_checksums(newest.bytes(key), 2**16) == wanted
                assert set(newest.bytes(key)[:: size // 2]) == {newest.version.step % 251}
            interrupted += arena.in_progress() is not None
            arena.abandon()
        assert interrupted, "no kill hit a version in progress: the test proved nothing"
    finally:
        arena.close()
        Path("/dev/shm", name).unlink()


def _run_and_kill(arena, after):
    """Let a process write until version `after` is there, then kill it wherever it is."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(arena.fd)],
        pass_fds=[arena.fd],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with writer:
        assert writer.stdout.readline() == b"ready\n"
        try:
            while arena.newest().version.step < after:
                assert writer.poll() is None
        finally:
            writer.send_signal(signal.SIGKILL)


def test_held_versions_are_not_overwritten_until_others_are(tmp_path):
    arena = Arena.create("a", msgspec.structs.replace(LAYOUT, num_slots=4), tmp_path)
    for step in range(1, 5):
        write(arena, Version(step, 0), step)
    arena.hold([Version(1, 0), Version(2, 0), Version(9, 0)])
    for step in range(5, 9):
        write(arena, Version(step, 0), step)
        assert sorted(v.step for v in arena.versions().values()) == [1, 2, step - 1, step]
    arena.hold([Version(8, 0)])
    for step in range(9, 13):
        write(arena, Version(step, 0), step)
    assert sorted(v.step for v in arena.versions().values()) == [8, 10, 11, 12]
    arena.close()


def test_what_is_held_gives_way_to_what_is_pinned(tmp_path):
    arena = Arena.create("a", msgspec.structs.replace(LAYOUT, num_slots=3), tmp_path)
    for step in (1, 2, 3):
        write(arena, Version(step, 0), step)
    arena.hold([Version(1, 0), Version(2, 0)])
    assert arena.pin(Version(3, 0))
    write(arena, Version(4, 0), 4)
    assert sorted(v.step for v in arena.versions().values()) == [2, 3, 4]
    arena.close()


def test_populating_maps_every_page_and_changes_nothing(tmp_path):
    entry = msgspec.structs.replace(LAYOUT.entries[0], num_bytes=8 * 2**20)
    layout = msgspec.structs.replace(LAYOUT, entries=(entry,), rows=(), tensors=())
    Arena.create("a", layout, tmp_path).close()
    arena = Arena.open(tmp_path / "a")
    before, content = resident_bytes(tmp_path / "a"), bytes(arena.memory[:4096])
    arena.populate()
    assert resident_bytes(tmp_path / "a") >= arena.memory.nbytes > before
    assert bytes(arena.memory[:4096]) == content
    arena.close()


def resident_bytes(path):
    """Of the mapping of a file into this process."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith(str(path)))
    sizes = [line for line in lines[at + 1 : at + 12] if line.startswith("Rss:")]
    return 1024 * int(sizes[0].split()[1])
