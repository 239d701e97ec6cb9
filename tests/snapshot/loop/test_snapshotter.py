"""The snapshotter around plain objects, in one process; the examples run it in several."""

import random
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import list_checkpoints
from holdfast.snapshot.loop import loop_memory
from holdfast.snapshot.loop import snapshotter as module
from holdfast.snapshot.loop.snapshotter import Snapshotter
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
    def __init__(self, folder, seed: int = 1, *, fresh: bool = False, **options) -> None:
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
        }
        self.snapshotter = Snapshotter(objects, folder / "memory", node="here", **options)
        self.first = self.snapshotter.load(allow_fresh=fresh)

    def step(self) -> None:
        x = torch.randn(16, 4)
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.position.at += 16
        self.snapshotter.step()

    def run(self, num_steps: int) -> "Loop":
        for _ in range(num_steps):
            self.step()
        return self

    def state(self) -> list:
        moments = [t for s in self.optimizer.state.values() for t in s.values()]
        tensors = [*self.model.state_dict().values(), *moments, torch.get_rng_state()]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return [[t.tolist() for t in tensors], rates, self.position.at, random.getstate()]


def arena_of(folder) -> Arena:
    (path,) = (path for path in folder.iterdir() if path.name.startswith("memory.here."))
    return Arena.open(path)


def damage(folder, newest_only: bool = True) -> None:
    arena = arena_of(folder)
    for version in arena.versions().values():
        if version == arena.newest().version or not newest_only:
            slot = arena.slot(version)
            key = next(e.key for e in arena.layout.entries if "model.0.weight" in e.key)
            slot.tensor(key)[0] += 1
    arena.close()


def test_a_new_loop_goes_on_where_the_snapshot_was_taken(tmp_path) -> None:
    loop = Loop(tmp_path, fresh=True).run(3)
    assert loop.first == 0
    expected = loop.state()
    loop.snapshotter.close()  # the last version is finished by it
    random.random()
    torch.rand(1)
    again = Loop(tmp_path, seed=9)
    assert again.first == 3
    assert again.state() == expected
    assert again.snapshotter.load_report.bytes_by_origin().keys() == {"local memory"}
    again.step()
    again.snapshotter.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_two_loops_that_go_on_from_one_snapshot_do_the_same(tmp_path) -> None:
    Loop(tmp_path, fresh=True).run(2).snapshotter.close()
    (path,) = tmp_path.iterdir()
    saved, ends = path.read_bytes(), []
    for _ in range(2):
        path.write_bytes(saved)
        again = Loop(tmp_path, seed=7)
        assert again.first == 2
        ends.append(again.run(3).state())
        again.snapshotter.close()
        assert list(tmp_path.iterdir()) == [path], "the same layout uses the same memory"
    assert ends[0] == ends[1]


def test_a_version_has_the_state_of_its_step_although_training_went_on(tmp_path) -> None:
    loop = Loop(tmp_path, fresh=True).run(1)
    at_one = loop.state()
    x = torch.randn(16, 4)
    loop.model(x).square().mean().backward()  # changes buffers, as the next step does
    loop.optimizer.step()  # finishes the copy first
    again = Loop(tmp_path, seed=9)
    assert again.first == 1
    assert again.state() == at_one
    for each in (loop, again):
        each.snapshotter.close()


def test_a_damaged_version_is_passed_over(tmp_path, caplog) -> None:
    Loop(tmp_path, fresh=True).run(3).snapshotter.close()
    damage(tmp_path)
    again = Loop(tmp_path, seed=9)
    assert again.first == 2
    assert "passed over: step 3" in caplog.text
    again.snapshotter.close()


def test_what_is_newer_than_what_was_loaded_is_of_no_history(tmp_path) -> None:
    Loop(tmp_path, fresh=True).run(3).snapshotter.close()
    damage(tmp_path)
    again = Loop(tmp_path).run(1)
    again.snapshotter.close()
    versions = arena_of(tmp_path).versions().values()
    assert sorted((v.step, v.agreed_in) for v in versions) == [(2, 1), (3, 2)]


def test_without_any_state_it_is_an_error(tmp_path) -> None:
    with pytest.raises(HoldfastError, match="nothing was found in memory or on disk"):
        Loop(tmp_path)


def test_where_all_is_damaged_it_begins_anew_only_if_told(tmp_path) -> None:
    Loop(tmp_path, fresh=True).run(3).snapshotter.close()
    damage(tmp_path, newest_only=False)
    with pytest.raises(HoldfastError, match=r"step 3 .*; .*step 2 .*allow_fresh=True"):
        Loop(tmp_path)
    torch.manual_seed(5)
    fresh = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    again = Loop(tmp_path, seed=5, fresh=True)
    assert again.first == 0
    assert not again.optimizer.state
    pairs = zip(fresh.state_dict().values(), again.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "state is as it was"
    again.run(1).snapshotter.close()


def test_disk_is_the_last_source(tmp_path) -> None:
    disk = tmp_path / "disk"
    loop = Loop(tmp_path, fresh=True, disk=disk, persist_every=2).run(5)
    expected = loop.state()
    loop.snapshotter.close(remove=True)
    assert list_checkpoints(disk)[0].version.step == 5, "the end is written, too"
    again = Loop(tmp_path, seed=9, disk=disk)
    assert again.first == 5
    assert again.state() == expected
    assert again.snapshotter.load_report.bytes_by_origin().keys() == {"storage"}
    again.snapshotter.close()
    other = Loop(tmp_path, disk=disk, persist_every=1).run(2)
    other.snapshotter.close()
    assert len(list_checkpoints(disk)) == 2, "older ones go"


def test_plain_dcp_reads_the_checkpoints(tmp_path) -> None:
    loop = Loop(tmp_path, fresh=True, disk=tmp_path / "disk").run(2)
    loop.snapshotter.close(remove=True)
    target = {"rank0": {"model": {"0.weight": torch.zeros(8, 4)}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one process without a process group
        dcp_load(target, checkpoint_id=tmp_path / "disk" / "step-2", no_dist=True)
    assert torch.equal(target["rank0"]["model"]["0.weight"], loop.model[0].weight)


def test_a_damaged_checkpoint_is_told(tmp_path) -> None:
    disk = tmp_path / "disk"
    loop = Loop(tmp_path, fresh=True, disk=disk).run(2)
    loop.snapshotter.close(remove=True)
    (folder,) = disk.iterdir()
    part = next(folder.glob("*.distcp"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(HoldfastError, match="is damaged: its checksum does not fit"):
        Loop(tmp_path, disk=disk)


def test_every_is_kept(tmp_path) -> None:
    loop = Loop(tmp_path, fresh=True, every=2).run(5)
    loop.snapshotter.close()
    assert [report.version.step for report in loop.snapshotter.reports] == [2, 4]


def test_an_update_that_is_not_announced_is_refused(tmp_path) -> None:
    snapshotter = Snapshotter({"model": nn.Linear(2, 2)}, tmp_path / "memory")
    with pytest.raises(HoldfastError, match=r"load\(\) must be called"):
        snapshotter.step()
    snapshotter.load(allow_fresh=True)
    snapshotter.step()
    with pytest.raises(HoldfastError, match="before_update"):
        snapshotter.step()
    snapshotter.before_update()
    snapshotter.step()
    snapshotter.close()


def test_state_of_another_shape_is_refused(tmp_path) -> None:
    Loop(tmp_path, fresh=True).run(1).snapshotter.close()
    other = Snapshotter({"model": nn.Linear(3, 3)}, tmp_path / "memory", node="here")
    with pytest.raises(HoldfastError, match=r"rank0.model.weight has shape \(3, 3\) here and"):
        other.load()
    other.close()


def test_a_parameter_that_got_no_gradient_has_no_state_afterwards_either(tmp_path) -> None:
    def make() -> tuple[nn.ModuleList, torch.optim.Optimizer, Snapshotter]:
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(3, 3)])
        optimizer = torch.optim.AdamW(model.parameters())
        objects = {"model": model, "optimizer": optimizer}
        return model, optimizer, Snapshotter(objects, tmp_path / "memory")

    model, optimizer, snapshotter = make()
    snapshotter.load(allow_fresh=True)
    model[0](torch.ones(2)).sum().backward()
    optimizer.step()
    snapshotter.step()
    snapshotter.close()
    again, second, other = make()
    assert other.load() == 1
    assert len(second.state) == len(optimizer.state) == 2
    assert torch.equal(again[1].weight, model[1].weight)
    other.close()


def test_a_model_with_more_tensors_is_refused(tmp_path) -> None:
    first = Snapshotter({"model": nn.ModuleList([nn.Linear(2, 2)])}, tmp_path / "memory")
    first.load(allow_fresh=True)
    first.step()
    first.close()
    more = nn.ModuleList([nn.Linear(2, 2), nn.Linear(3, 3)])
    second = Snapshotter({"model": more}, tmp_path / "memory")
    with pytest.raises(HoldfastError, match=r"rank0.model.1.weight .* was not saved"):
        second.load()


def test_memory_in_use_is_not_touched(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loop_memory, "OWNER_WAIT_S", 0.0)
    loop = Loop(tmp_path, fresh=True).run(1)
    monkeypatch.setattr(loop_memory.os, "getpid", lambda: 1)
    with pytest.raises(HoldfastError, match="which lives: stop it first"):
        Loop(tmp_path, fresh=True)
    loop.snapshotter.close()


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"every": -1}, {"persist_every": 0}, {"keep_latest_k": 0}]
)
def test_bad_numbers_are_refused(tmp_path, options) -> None:
    with pytest.raises(HoldfastError, match=f"{next(iter(options))} = "):
        Snapshotter({}, tmp_path / "memory", **options)


def test_the_interval_follows_what_the_loop_loses(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_RETHINK", 3)
    loop = Loop(tmp_path, fresh=True, limit=0.1).run(2)
    loop.snapshotter._stalls.seconds = 2.0
    loop.snapshotter._began -= 2.0  # so all of the loop's time was lost
    loop.step()
    assert 5 <= loop.snapshotter.interval <= 10
    loop.snapshotter.close()
