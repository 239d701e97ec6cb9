"""Checkpoints beside a loop of one rank: due ones only, and failures are tried again."""

import pytest

from holdfast.snapshot.copying.others import Alone
from holdfast.snapshot.disk.checkpoints import list_checkpoints
from holdfast.snapshot.layout import Version
from holdfast.snapshot.loop import protection as module
from holdfast.snapshot.loop.protection import Persistence, Protection
from holdfast.snapshot.loop.ranks import Ranks
from holdfast.snapshot.loop_shares import HeldBox, share_loop
from holdfast.snapshot.memory.arena import Arena
from support.snapshots import fill_slot

LONG_S = 30.0
LAYOUT = share_loop([[HeldBox("w", (8,), "float32", ((0, 8),))]], ["a"], num_slots=4).layouts[0]


def v(step):
    return Version(step, 1)


@pytest.fixture
def arena(tmp_path):
    arena = Arena.create("arena", LAYOUT, tmp_path)
    yield arena
    arena.close()


class Steps:
    """Versions as a loop makes them."""

    def __init__(self, arena, tmp_path, every):
        self.arena, self.others, self.root = arena, Alone(), tmp_path / "disk"
        self.protection = Protection(
            Ranks("a"), arena, self.others, [], [], persistence=Persistence(self.root, every, 2)
        )

    def make(self, step):
        import torch

        slot = self.arena.begin(v(step), self.others.complete)
        slot.seal(fill_slot(slot, {("w", "parameter"): torch.full((8,), float(step))}))
        self.others.announce(v(step), sealed=True)
        self.protection.look()

    def on_disk(self):
        return [one.version.step for one in list_checkpoints(self.root) if one.is_valid]


def test_the_last_version_is_written_at_the_end(arena, tmp_path):
    steps = Steps(arena, tmp_path, every=100)
    for step in range(1, 6):
        steps.make(step)
    assert steps.protection.stop(v(5), LONG_S)
    assert steps.on_disk() == [5]
    assert steps.protection.persisted == v(5)


def test_what_is_on_disk_already_is_not_written_again(arena, tmp_path):
    steps = Steps(arena, tmp_path, every=1)
    steps.make(1)
    assert steps.protection.stop(v(1), LONG_S)
    assert steps.on_disk() == [1]
    again = Protection(
        Ranks("a"),
        arena,
        steps.others,
        [],
        [],
        persistence=Persistence(steps.root, 10, 2),
        loaded=v(1),
    )
    assert again.stop(v(1), LONG_S)
    assert again.persisted is None


def test_a_failed_write_is_told_and_made_up_for(arena, tmp_path, monkeypatch, caplog):
    steps = Steps(arena, tmp_path, every=100)
    real = module.write_entries

    def fail(*args):
        monkeypatch.setattr(module, "write_entries", real)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_entries", fail)
    steps.protection._disk = Persistence(steps.root, 1, 2)
    steps.make(1)
    while steps.protection._done is None:
        steps.protection.look()
    assert "step 1 (epoch 1) was not written to disk: [Errno 28]" in caplog.text
    steps.make(2)
    assert steps.protection.stop(v(2), LONG_S)
    assert steps.on_disk() == [2]
