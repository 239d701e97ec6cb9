"""Checkpoints beside a loop: due ones and the last one only, and failures are tried again."""

import threading
from concurrent.futures import ThreadPoolExecutor

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
W = HeldBox("w", (8,), "float32", ((0, 8),))
LAYOUT = share_loop([[W]], ["a"], num_slots=4).layouts[0]


def v(step):
    return Version(step, 1)


@pytest.fixture
def arena(tmp_path):
    arena = Arena.create("arena", LAYOUT, tmp_path)
    yield arena
    arena.close()


class Steps:
    """Versions as a loop makes them."""

    def __init__(self, arena, tmp_path, every, ranks=None):
        self.arena, self.others, self.root = arena, Alone(), tmp_path / "disk"
        ranks, persistence = ranks or Ranks("a"), Persistence(self.root, every, 2)
        self.protection = Protection(ranks, arena, self.others, [], [], persistence=persistence)

    def make(self, step):
        import torch

        slot = self.arena.begin(v(step), self.others.complete)
        slot.seal(fill_slot(slot, {("w", "parameter"): torch.full((8,), float(step))}))
        self.others.announce(v(step), sealed=True)
        self.protection.look()

    def is_through(self, step):
        while self.protection._done != v(step):
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


def test_the_last_version_is_written_also_if_it_was_seen_before_the_end(arena, tmp_path):
    steps = Steps(arena, tmp_path, every=100)
    steps.make(1)
    steps.is_through(1)
    assert steps.on_disk() == []
    assert steps.protection.stop(v(1), LONG_S)
    assert steps.on_disk() == [1]


class TwoRanks:
    """As `Ranks`, for two threads of one process."""

    def __init__(self, rank, meeting, values):
        self.rank, self._meeting, self._values = rank, meeting, values

    def gather(self, value):
        self._values[self.rank] = value
        self._meeting.wait(LONG_S)
        found = list(self._values)
        self._meeting.wait(LONG_S)
        return found

    def least(self, value):
        return min(self.gather(value))

    def all(self, answer):
        return all(self.gather(answer))


def test_a_rank_may_learn_of_the_end_later_than_another(tmp_path):
    meeting, values = threading.Barrier(2), [None, None]
    layouts = share_loop([[W], [W]], ["a", "a"], num_slots=4).layouts
    arenas = [Arena.create(f"arena{n}", layout, tmp_path) for n, layout in enumerate(layouts)]
    first, second = (
        Steps(arena, tmp_path, every=100, ranks=TwoRanks(rank, meeting, values))
        for rank, arena in enumerate(arenas)
    )
    with ThreadPoolExecutor(1) as thread:
        first.make(1)
        ended = thread.submit(first.protection.stop, v(1), LONG_S)
        while not first.protection._is_stopping:
            pass
        second.make(1)
        second.is_through(1)
        assert first.on_disk() == []
        assert second.protection.stop(v(1), LONG_S)
        assert ended.result()
    assert first.on_disk() == [1]
    for arena in arenas:
        arena.close()


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
    steps.is_through(1)
    assert "step 1 (epoch 1) was not written to disk: [Errno 28]" in caplog.text
    steps.make(2)
    assert steps.protection.stop(v(2), LONG_S)
    assert steps.on_disk() == [2]
