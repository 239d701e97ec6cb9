"""The files of a loop's memory: found again, used again, removed."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import Version
from holdfast.snapshot.loop.loop_memory import LoopMemory
from holdfast.snapshot.loop_shares import HeldBox, share_loop

HELD = [[HeldBox("w", (8,), "float32", ((0, 8),))] for _ in range(2)]
SHARES = share_loop(HELD, ["a", "b"])
V1, V2 = Version(1, 1), Version(2, 1)


@pytest.fixture
def memory(tmp_path):
    return LoopMemory(tmp_path / "run", "a.example")


def seal(arena, version):
    sums = {entry.key: [0] for entry in arena.layout.checked}
    arena.begin(version).seal(sums)


def test_memory_is_found_again_without_what_came_later(memory):
    arena = memory.take(SHARES.layouts[0], None)
    seal(arena, V1)
    seal(arena, V2)
    arena.close()
    (found,), complaints = memory.open_all()
    assert sorted(found.versions().values()) == [V1, V2]
    assert not complaints
    found.close()
    again = memory.take(SHARES.layouts[0], V1)
    assert list(again.versions().values()) == [V1]
    again.close()


def test_each_node_has_its_own(memory, tmp_path):
    memory.take(SHARES.layouts[0], None).close()
    (tmp_path / "run.a.example.notes").write_text("not ours")
    assert len(memory.files()) == 1
    assert LoopMemory(tmp_path / "run", "a").files() == []


def test_what_is_damaged_is_told_and_made_anew(memory):
    memory.take(SHARES.layouts[0], None).close()
    (path,) = memory.files()
    path.write_bytes(b"nothing")
    arenas, (complaint,) = memory.open_all()
    assert not arenas
    assert path.name in complaint
    memory.take(SHARES.layouts[0], None).close()
    assert memory.open_all()[1] == []


def test_only_one_layout_is_kept(memory):
    other = share_loop([[HeldBox("w", (8,), "float32", ((0, 8),))]], ["a"])
    for layout in (SHARES.layouts[0], other.layouts[0]):
        memory.take(layout, None).close()
    memory.remove(keep_plan=SHARES.layouts[0].plan)
    (arena,), _ = memory.open_all()
    assert arena.layout == SHARES.layouts[0]
    arena.close()
    memory.remove()
    assert memory.files() == []


@pytest.mark.parametrize(
    ("where", "node", "text"),
    [
        ("run", "a/b", "no name for a node"),
        ("x/run", "a", "no directory"),
        ("holdfast-1", "a", "those of jobs"),
    ],
)
def test_bad_places_are_refused(tmp_path, where, node, text):
    with pytest.raises(HoldfastError, match=text):
        LoopMemory(tmp_path / where, node)
