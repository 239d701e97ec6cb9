"""The agent's arenas: made once, taken over, dropped when not needed, lost with the node."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.snapshot.layout import Version
from holdfast.snapshot.memory.node_arenas import (
    NodeArenas,
    pack_layouts,
    remove_all,
    unpack_layouts,
)
from holdfast.snapshot.share import plan_shares
from support.random_plans import make_units

SHARES, OTHERS = (
    plan_shares(regular_plan(make_units(2), replicas=2, micro_batches=n, devices_per_node=1))
    for n in (2, 4)
)
MINE, LATER = SHARES.layouts[0], OTHERS.layouts[0]
V1, V2 = Version(1, 1), Version(2, 2)


def seal(arenas, layout, version):
    from holdfast.snapshot.memory.arena import Arena

    arena = Arena.open(arenas.make([layout]))
    zeros = {entry.key: [0] * layout.num_chunks(entry) for entry in layout.checked}
    arena.begin(version).seal(zeros)
    arena.close()


@pytest.fixture
def arenas(tmp_path):
    found = NodeArenas("j.n0", tmp_path)
    yield found
    found.close()


def test_an_arena_is_made_once(arenas, tmp_path):
    path = arenas.make([MINE])
    inode = path.stat().st_ino
    assert arenas.make([MINE]).stat().st_ino == inode
    assert [(held.worker, held.versions) for held in arenas.held()] == [("n0.g0", ())]


def test_a_successor_takes_over_what_was_left(arenas, tmp_path):
    seal(arenas, MINE, V1)
    arenas.close()
    successor = NodeArenas("j.n0", tmp_path)
    assert [held.versions for held in successor.held()] == [(V1,)]
    successor.close()


def test_another_nodes_arenas_are_not_touched(arenas, tmp_path):
    arenas.make([MINE])
    assert NodeArenas("j.n1", tmp_path).held() == ()


def test_an_old_plans_arena_goes_once_a_newer_version_is_whole(arenas):
    seal(arenas, MINE, V1)
    arenas.make([LATER])
    assert arenas.drop_before(V1, [LATER.plan]) == []
    assert len(arenas.drop_before(V2, [LATER.plan])) == 1
    assert [held.plan for held in arenas.held()] == [LATER.plan]


def test_held_versions_stay(arenas):
    for number in (1, 2, 3):
        seal(arenas, MINE, Version(number, 1))
        assert not arenas.hold(MINE.plan, [V1]), "it keeps no copies"
    assert [held.versions for held in arenas.held()] == [(V1, Version(3, 1))]


def test_memory_that_was_removed_is_made_again(arenas):
    seal(arenas, MINE, V1)
    path = arenas.make([MINE])
    path.unlink()
    assert arenas.held() == ()
    assert arenas.make([MINE]) == path
    assert [held.versions for held in arenas.held()] == [()]


def test_the_memory_of_a_lost_node_is_gone(arenas, tmp_path):
    path = arenas.make([MINE])
    arenas.lose()
    assert not path.exists()


def test_at_the_end_nothing_is_left(arenas, tmp_path):
    arenas.make([MINE])
    remove_all(["j.n0"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_layouts_on_the_wire():
    assert unpack_layouts(pack_layouts((MINE, LATER))) == (MINE, LATER)
    with pytest.raises(HoldfastError, match="no layouts"):
        unpack_layouts(b"\x01")
