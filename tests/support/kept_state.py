"""A job's snapshots without a job: every worker's slices, and its node's arenas in a folder."""

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from holdfast.control.report import Member
from holdfast.control.worker_position import WorkerPosition
from holdfast.engine.state import Slice
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import SnapshotOptions, node_job
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.copying.worker_snapshots import WorkerSnapshots
from holdfast.snapshot.layout import ArenaLayout, Version
from holdfast.snapshot.load.job_state import Loaded, load_snapshot
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.memory.node_arenas import NodeArenas
from holdfast.snapshot.placement import AGREE
from support.snapshots import State

JOB = "test"


def make_slices(plan: Plan, worker: str, given: State | None = None) -> dict[str, Slice]:
    """A worker's part of the whole state; without one, values that no state has."""
    slices = {}
    for tensor, boxes in HolderMap(plan).slices(worker).items():
        shape = [high - low for low, high in boxes[0]]
        kinds = HolderMap(plan).tensors[tensor].kept().kinds
        own, *others = [
            torch.full(shape, torch.nan, dtype=getattr(torch, kind.dtype)) for kind in kinds
        ]
        state = {kind.name: values for kind, values in zip(kinds[1:], others, strict=True)}
        slices[tensor] = Slice(tensor, boxes[0], nn.Parameter(own), state)
    if given is not None:
        fill(slices, given)
    return slices


def fill(slices: dict[str, Slice], state: State) -> None:
    for piece in slices.values():
        index = tuple(slice(low, high) for low, high in piece.box)
        for kind in piece.kinds:
            piece.part(kind, piece.box).copy_(state[piece.tensor, kind][index])


def check(slices: dict[str, Slice], state: State) -> None:
    for piece in slices.values():
        index = tuple(slice(low, high) for low, high in piece.box)
        for kind in piece.kinds:
            assert torch.equal(piece.part(kind, piece.box), state[piece.tensor, kind][index])


class KeptWorker:
    """(Keeper) One worker, and the way to its node's arenas."""

    def __init__(self, kept: "KeptWorkers", worker: str) -> None:
        self._kept, self._worker = kept, worker
        self.slices = make_slices(kept.plan, worker)
        self.position = WorkerPosition(Member(worker, 1))
        self.sealed_versions: list[Version] = []
        self.waits_s: list[float] = []
        self.costs: list[CopyCost] = []
        self.snapshots = WorkerSnapshots(
            kept.options,
            worker,
            self,
            device=torch.device("cpu"),
            current=lambda: Version(self.position.version, self.position.outcome.epoch),
            num_updates=lambda: self.position.version,
        )

    def want_arena(self, layouts: tuple[ArenaLayout, ...]) -> None:
        arenas = self._kept.arenas[node_of(self._worker)]
        self.path = arenas.make(layouts)
        own = [arenas.path_of(layout) for layout in layouts if layout.is_staging]
        self.staging = own[0] if own else None
        self.snapshots.give(layouts[0].plan, str(self.path), str(self.staging or ""))

    def sealed(self, plan: str, version: Version, cost: CopyCost) -> None:
        self.sealed_versions.append(version)
        self.costs.append(cost)
        self.waits_s.append(cost.wait_s)

    def enter(self, since: Version | None = None) -> None:
        self.snapshots.enter(self._kept.plan, self.slices, since)
        self.snapshots._planning.result()
        if self.snapshots._opening is not None:  # None: nothing fits
            self.snapshots._opening.result()

    def apply(self, step: int, epoch: int, state: State) -> None:
        """The optimizer's part of a step: state becomes the one that enters `step`."""
        self.snapshots.applying()
        fill(self.slices, state)
        self.position.version, self.position.outcome = step, SimpleNamespace(epoch=epoch)
        self.snapshots.applied(step)

    def wait(self) -> None:
        self.snapshots.waiting(AGREE)
        self.snapshots.going_on()


class KeptWorkers:
    def __init__(self, plan: Plan, folder: Path, **options: object) -> None:
        self.plan, self.folder = plan, folder
        self.options = SnapshotOptions(job=JOB, **options)
        nodes = dict.fromkeys(map(node_of, plan.workers))
        self.arenas = {node: NodeArenas(node_job(JOB, node), folder) for node in nodes}
        self.by_name = {worker: KeptWorker(self, worker) for worker in plan.workers}

    def enter(self) -> None:
        for one in self.by_name.values():
            one.enter()

    def train(self, states: dict[int, State], epoch: int = 1) -> None:
        """All of them, step by step; the last version is not finished by any worker."""
        for step, state in states.items():
            for one in self.by_name.values():
                one.apply(step, epoch, state)

    def held(self) -> dict[str, tuple[HeldArena, ...]]:
        return {node: arenas.held() for node, arenas in self.arenas.items()}

    def load(self, plan: Plan, worker: str, version: Version, state: State) -> Loaded:
        """What is loaded is what was saved, to the last bit."""
        slices = make_slices(plan, worker)
        found = load_snapshot(slices, version, job=JOB, node=node_of(worker), folder=self.folder)
        check(slices, state)
        return found

    def close(self) -> None:
        for one in self.by_name.values():
            one.snapshots.leave()
        for arenas in self.arenas.values():
            arenas.close()
