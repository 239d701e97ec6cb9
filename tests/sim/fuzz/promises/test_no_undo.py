import pytest

from holdfast.control import recovery
from holdfast.control.rounds import NeedsRestore
from holdfast.control.snapshots.coordination import SnapshotCoordination
from holdfast.sim.fuzz.promises.no_undo import NoUndo
from support.fuzz_worlds import at_version, broken_promise, make, worker


def with_a_crash():
    world = at_version(make(NoUndo()), 6)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    return world


def test_a_recovery_keeps_it():
    assert broken_promise(with_a_crash(), 12) == ""


def test_a_rollback_without_need_is_seen(monkeypatch):
    monkeypatch.setattr(recovery, "decide", lambda *_: NeedsRestore("a planted bug"))
    assert broken_promise(with_a_crash(), 12) == "P3"


@pytest.mark.parametrize("is_believed", [True, False])
def test_going_back_past_a_whole_snapshot_is_seen(monkeypatch, is_believed):
    if is_believed:
        monkeypatch.setattr(SnapshotCoordination, "newest_loadable", lambda *_: None)
        monkeypatch.setattr(recovery, "_has_no_step", lambda *_: True)
    world = at_version(make(NoUndo()), 6)
    for name in ("n0.g0", "n2.g0"):
        world.kill(worker(world, name), "SIGKILL")
    assert broken_promise(world, 12) == ("P3" if is_believed else "")
