"""A worker process that trains with the engine and takes a snapshot of every step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.control.worker_reports import Planned
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.scripted import scripted_trainer
from holdfast.models.model import LlamaModel
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.text import parse_plan
from holdfast.plan.timeline import evaluate
from holdfast.snapshot.copying.copier import Copier, CopyReport
from holdfast.snapshot.copying.gaps import PlacedCopies, place_workers
from holdfast.snapshot.layout import LayoutEntry
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.placement import CopyCosts
from holdfast.snapshot.share import OTHER_BYTES, OTHER_KEY, plan_shares
from support.cluster import Store
from support.training import Task


class Quiet:
    def step_done(self, report: object) -> None:
        pass

    def plan_changed(self, report: object) -> None:
        pass

    def stop_requested(self) -> bool:
        return False


def train_with_snapshots(
    worker: str, store: tuple[int, str], text: str, task: Task, folder: Path
) -> tuple[list[CopyReport], list[bool], list[bool]]:
    """Reports; for every step, whether the sealed version has the bits of the state entering it;
    and whether its parity rows do.
    """
    torch.set_num_threads(1)
    plan = parse_plan(text)
    config = TrainerConfig(num_steps=10**6, dtype=task.dtype, optimizer=task.optimizer)
    trainer = scripted_trainer(
        worker,
        [Planned(0, plan)],
        model=LlamaModel(task.shape),
        data=task.data,
        config=config,
        store=Store(*store),
        listener=Quiet(),
    )
    shares = plan_shares(plan, dtype=task.dtype, chunk_bytes=4096)
    layout = shares.layout(worker)
    arena = Arena.create(f"arena-{worker}", layout, folder)
    copier = Copier(arena, chunk_bytes=2048)

    def part(entry: LayoutEntry) -> torch.Tensor:
        return trainer.slices[entry.tensor].part(entry.kind, entry.box)

    sources = {e.key: part(e) for e in layout.checked if e.tensor}
    sources[OTHER_KEY] = torch.zeros(OTHER_BYTES, dtype=torch.uint8)
    copies = PlacedCopies(copier, _placement(plan, shares.layouts, worker), sources)
    trainer.gaps = copies
    equal: list[bool] = []
    protected: list[bool] = []
    expected: dict[str, bytes] = {}
    for step in range(1, task.num_steps + 1):
        trainer.run_step()  # copies the state that enters it, and finishes that before the update
        if expected:
            slot = arena.slot(Version(step - 1, 0))
            assert slot is not None
            own = [e for e in layout.entries if e.tensor]
            equal.append(all(bytes(slot.bytes(e.key)) == expected[e.key] for e in own))
            protected += [
                bytes(slot.bytes(row.key)) == _xor([_strip(s, expected) for s in row.strips])
                for row in layout.rows
            ]
        expected = {
            e.key: part(e).contiguous().numpy().tobytes() for e in layout.checked if e.tensor
        }
    copier.stop()
    arena.close()
    trainer.close()
    return list(copier.reports), equal, protected


def _placement(plan: Plan, layouts: Sequence[Any], worker: str) -> Any:
    """With costs that leave room: what is tried here is the copying, not the prediction."""
    profile = Profile(worker=UnitCost(1.0, 1.0, 1.0))
    costs = CopyCosts(idle_rate=1e6)
    found = place_workers(evaluate(plan, profile), layouts, costs, chunk_bytes=2048, limit=1e9)
    return found[worker]


def _strip(entries: Sequence[LayoutEntry], expected: dict[str, bytes]) -> bytes:
    return b"".join(expected[entry.key] for entry in entries)


def _xor(strips: Sequence[bytes]) -> bytes:
    length = max(len(strip) for strip in strips)
    total = 0
    for strip in strips:
        total ^= int.from_bytes(strip.ljust(length, b"\0"), "little")
    return total.to_bytes(length, "little")
