"""The snapshotter around plain objects, in one process; the examples run it in several."""

import random

import pytest
import torch
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.snapshot.loop import snapshotter as module
from holdfast.snapshot.loop.snapshotter import RandomState, Snapshotter
from holdfast.snapshot.memory.arena import Arena


class Position:
    """A data position: no tensor, no module."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict:
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict) -> None:
        self.at = state_dict["at"]


class Loop:
    def __init__(self, folder, seed: int = 1, **options) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.position = Position()
        objects = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "position": self.position,
            "random": RandomState(),
        }
        self.snapshotter = Snapshotter(objects, folder / "memory", **options)

    def step(self) -> None:
        x = torch.randn(16, 4)
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.position.at += 16
        self.snapshotter.step()

    def state(self) -> list:
        moments = [t for s in self.optimizer.state.values() for t in s.values()]
        tensors = [*self.model.state_dict().values(), *moments, torch.get_rng_state()]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return [[t.tolist() for t in tensors], rates, self.position.at, random.getstate()]


def test_a_new_loop_goes_on_where_the_snapshot_was_taken(tmp_path) -> None:
    loop = Loop(tmp_path)
    assert loop.snapshotter.load() == 0
    for _ in range(3):
        loop.step()
    expected = loop.state()
    loop.snapshotter.close()  # the last version is finished by it
    for _ in range(2):
        random.random()
        torch.rand(1)
    again = Loop(tmp_path, seed=9)
    assert again.snapshotter.load() == 3
    assert again.state() == expected
    again.step()
    again.snapshotter.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_two_loops_that_go_on_from_one_snapshot_do_the_same(tmp_path) -> None:
    loop = Loop(tmp_path)
    for _ in range(2):
        loop.step()
    ends = []
    loop.snapshotter.close()
    saved = (tmp_path / "memory.0").read_bytes()
    for _ in range(2):
        (tmp_path / "memory.0").write_bytes(saved)
        again = Loop(tmp_path, seed=7)
        assert again.snapshotter.load() == 2
        for _ in range(3):
            again.step()
        ends.append(again.state())
        again.snapshotter.close()
    assert ends[0] == ends[1]


def test_a_version_has_the_state_of_its_step_although_training_went_on(tmp_path) -> None:
    loop = Loop(tmp_path)
    loop.step()
    at_one = loop.state()
    x = torch.randn(16, 4)
    loop.model(x).square().mean().backward()  # changes buffers, as the next step does
    loop.optimizer.step()  # finishes the copy first
    again = Loop(tmp_path, seed=9)
    assert again.snapshotter.load() == 1
    assert again.state() == at_one
    for each in (loop, again):
        each.snapshotter.close()


def test_a_damaged_version_is_passed_over(tmp_path) -> None:
    loop = Loop(tmp_path)
    for _ in range(3):
        loop.step()
    loop.snapshotter.close()
    arena = Arena.open(tmp_path / "memory.0")
    slot = arena.newest()
    assert slot.version.step == 3
    slot.tensor("model/0.weight")[0] += 1
    arena.close()
    again = Loop(tmp_path, seed=9)
    assert again.snapshotter.load() == 2
    again.snapshotter.close()


def test_every_is_kept(tmp_path) -> None:
    loop = Loop(tmp_path, every=2)
    for _ in range(5):
        loop.step()
    loop.snapshotter.close()
    assert [report.version.step for report in loop.snapshotter.reports] == [2, 4]


def test_an_update_that_nobody_announces_is_refused(tmp_path) -> None:
    model = nn.Linear(2, 2)
    snapshotter = Snapshotter({"model": model}, tmp_path / "memory")
    snapshotter.step()
    with pytest.raises(HoldfastError, match="before_update"):
        snapshotter.step()
    snapshotter.before_update()
    snapshotter.step()
    snapshotter.close()


def test_state_of_another_shape_is_refused(tmp_path) -> None:
    loop = Loop(tmp_path)
    loop.step()
    loop.snapshotter.close()
    other = nn.Linear(3, 3)
    snapshotter = Snapshotter({"model": other}, tmp_path / "memory")
    with pytest.raises(HoldfastError, match="another shape"):
        snapshotter.step()
    snapshotter.close()


def test_bad_limits_are_refused(tmp_path) -> None:
    with pytest.raises(HoldfastError, match="limit = 0"):
        Snapshotter({}, tmp_path / "memory", limit=0)


def test_the_interval_follows_what_the_loop_loses(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_RETHINK", 3)
    loop = Loop(tmp_path, limit=0.1)
    for _ in range(2):
        loop.step()
    loop.snapshotter._stalls.seconds = 2.0
    loop.snapshotter._began -= 2.0  # so all of the loop's time was lost
    loop.step()
    assert 5 <= loop.snapshotter.interval <= 10
    loop.snapshotter.close()
