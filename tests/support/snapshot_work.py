"""A worker process that trains with the engine and takes a snapshot of every step, as in a job."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from holdfast.control.worker_reports import Planned
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.scripted import scripted_trainer
from holdfast.engine.trainer import Trainer
from holdfast.models.model import LlamaModel
from holdfast.plan.text import parse_plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import SnapshotOptions, node_job
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.copying.worker_snapshots import WorkerSnapshots
from holdfast.snapshot.layout import ArenaLayout, LayoutEntry, Version
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.memory.node_arenas import NodeArenas
from support.cluster import Store
from support.training import Task

EPOCH = 1


class Quiet:
    def step_done(self, report: object) -> None:
        pass

    def plan_changed(self, report: object) -> None:
        pass

    def stop_requested(self) -> bool:
        return False


class Keeper:
    """(Keeper) The agent of a node with one worker."""

    def __init__(self, worker: str, folder: Path, dtype: str) -> None:
        options = SnapshotOptions(job="test", dtype=dtype, folder=str(folder))
        self.arenas = NodeArenas(node_job("test", node_of(worker)), folder)
        self.sealed_versions: list[tuple[Version, CopyCost]] = []
        self.step = 0
        """The state is the one that enters it, or will be when it is applied next."""
        self.snapshots = WorkerSnapshots(
            options,
            worker,
            self,
            device=torch.device("cpu"),
            current=lambda: Version(self.step, EPOCH),
            num_updates=lambda: self.step,
        )

    def want_arena(self, layouts: tuple[ArenaLayout, ...]) -> None:
        self.path = self.arenas.make(layouts)
        self.snapshots.give(layouts[0].plan, str(self.path))

    def sealed(self, plan: str, version: Version, cost: CopyCost) -> None:
        self.sealed_versions.append((version, cost))

    def light_given(self, version: Version, before: Version | None, cost: CopyCost) -> None:
        raise AssertionError("no light versions are asked for")


def train_with_snapshots(
    worker: str, store: tuple[int, str], text: str, task: Task, folder: Path
) -> tuple[list[tuple[Version, CopyCost]], list[bool], list[bool]]:
    """Versions that were sealed; for each, whether it has the bits of the state that entered its
    step; and whether its parity rows do.
    """
    torch.set_num_threads(1)
    trainer = _trainer(worker, store, text, task)
    keeper = Keeper(worker, folder, task.dtype)
    trainer.gaps = snapshots = keeper.snapshots
    snapshots.enter(parse_plan(text), trainer.slices)
    assert snapshots._planning is not None
    snapshots._planning.result()
    assert snapshots._opening is not None
    snapshots._opening.result()
    arena = Arena.open(keeper.path)
    found = [entry for entry in arena.layout.checked if entry.tensor]
    expected: dict[str, bytes] = {}
    equal: list[bool] = []
    protected: list[bool] = []
    for step in range(1, task.num_steps + 1):
        keeper.step = step
        trainer.run_step()  # copies the state that enters it, and finishes that before the update
        if expected:
            own, rows = _compare(arena, Version(step - 1, EPOCH), expected)
            equal.append(own)
            protected += rows
        expected = {entry.key: _bits(trainer, entry) for entry in found}
    snapshots.leave()
    arena.close()
    keeper.arenas.close()
    trainer.close()
    return keeper.sealed_versions, equal, protected


def _trainer(worker: str, store: tuple[int, str], text: str, task: Task) -> Trainer:
    config = TrainerConfig(num_steps=10**6, dtype=task.dtype, optimizer=task.optimizer)
    return scripted_trainer(
        worker,
        [Planned(0, parse_plan(text))],
        model=LlamaModel(task.shape),
        data=task.data,
        config=config,
        store=Store(*store),
        listener=Quiet(),
    )


def _bits(trainer: Trainer, entry: LayoutEntry) -> bytes:
    part: Tensor = trainer.slices[entry.tensor].part(entry.kind, entry.box)
    return part.contiguous().numpy().tobytes()


def _compare(arena: Arena, version: Version, expected: dict[str, bytes]) -> tuple[bool, list[bool]]:
    """Are the worker's own entries equal, and its parity rows?"""
    slot = arena.slot(version)
    assert slot is not None
    own = [entry for entry in arena.layout.entries if entry.tensor]
    rows = [
        bytes(slot.bytes(row.key)) == _xor([_strip(strip, expected) for strip in row.strips])
        for row in arena.layout.rows
    ]
    return all(bytes(slot.bytes(e.key)) == expected[e.key] for e in own), rows


def _strip(entries: Sequence[LayoutEntry], expected: dict[str, bytes]) -> bytes:
    return b"".join(expected[entry.key] for entry in entries)


def _xor(strips: Sequence[bytes]) -> bytes:
    length = max(len(strip) for strip in strips)
    total = 0
    for strip in strips:
        total ^= int.from_bytes(strip.ljust(length, b"\0"), "little")
    return total.to_bytes(length, "little")
