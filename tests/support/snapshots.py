"""Saved state for tests: whole tensors, the arenas of a plan that hold them, and the way back."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.units import Box
from holdfast.plan.workers import node_of
from holdfast.snapshot.layout import OTHER, PARITY, ArenaLayout, LayoutEntry, chunk_checksums
from holdfast.snapshot.load.assemble import LoadReport, Want, assemble
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.manifest import Holding, Manifest
from holdfast.snapshot.memory.arena import Arena, ArenaSlot, Version
from holdfast.snapshot.memory.sources import NodeMemory
from holdfast.snapshot.parity import fold_in, folds
from holdfast.snapshot.share import Shares, plan_shares

State = dict[tuple[str, str], Tensor]
"""(tensor, kind) -> the whole of it."""


def random_state(plan: Plan, seed: int = 0, dtype: torch.dtype = torch.float32) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        (name, kind.name): torch.randn(spec.shape, generator=generator, dtype=dtype)
        for name, spec in HolderMap(plan).tensors.items()
        for kind in spec.kept().kinds
    }


def flat_bytes(state: State, entry: LayoutEntry) -> memoryview:
    """What any holder has for an entry, as it lies in an arena."""
    if entry.kind == OTHER:
        return memoryview(bytes([7]) * entry.num_bytes)
    index = tuple(slice(low, high) for low, high in entry.box)
    piece = state[entry.tensor, entry.kind][index].contiguous()
    return memoryview(piece.reshape(-1).view(torch.uint8).numpy())


def encode(slot: ArenaSlot, source: Callable[[LayoutEntry], memoryview]) -> dict[str, list[int]]:
    """Fold everything at once; the checksums of the rows and of what went into them."""
    chunk_bytes = slot.layout.chunk_bytes
    checksums: dict[str, list[int]] = {}
    for fold in folds(slot.layout):
        data = source(fold.entry)
        assert data.nbytes == fold.entry.num_bytes
        fold_in(slot.bytes(fold.row), fold, data)
        checksums[fold.entry.key] = chunk_checksums(data, chunk_bytes)
    for row in slot.layout.rows:
        checksums[row.key] = chunk_checksums(slot.bytes(row.key), chunk_bytes)
    return checksums


def fill_slot(slot: ArenaSlot, state: State) -> dict[str, list[int]]:
    """Everything a worker does between `begin` and `seal`; the checksums for it."""
    layout = slot.layout
    for entry in layout.entries:
        if entry.kind != PARITY:
            slot.bytes(entry.key)[:] = flat_bytes(state, entry)
    checksums = encode(slot, lambda entry: flat_bytes(state, entry))
    for entry in layout.entries:
        checksums.setdefault(entry.key, chunk_checksums(slot.bytes(entry.key), layout.chunk_bytes))
    return checksums


class Cluster:
    """Several nodes' arenas in one process, under a folder that stands for shared memory."""

    def __init__(self, plan: Plan, folder: Path, **options: object) -> None:
        self.plan, self.folder = plan, folder
        self.shares: Shares = plan_shares(plan, **{"chunk_bytes": 64, "other_bytes": 16} | options)
        self.arenas = [self._create(layout) for layout in self.shares.layouts]
        self.copies = [self._create(layout) for layout in self.shares.copies]

    def _create(self, layout: ArenaLayout) -> Arena:
        return Arena.create(f"holdfast-test-{layout.worker}@{layout.node}", layout, self.folder)

    @property
    def nodes(self) -> list[str]:
        return list(dict.fromkeys(node_of(worker) for worker in self.plan.workers))

    def save(self, version: Version, state: State, workers: Iterable[str] | None = None) -> None:
        """By all workers, or by some; copies are made where they belong."""
        for arena in self.arenas:
            if workers is None or arena.layout.worker in workers:
                slot = arena.begin(version)
                slot.seal(fill_slot(slot, state))
        for copy in self.copies:
            if workers is None or copy.layout.worker in workers:
                slot = copy.begin(version)
                slot.seal(fill_slot(slot, state))

    def memories(self, lost: Iterable[str] = ()) -> list[NodeMemory]:
        gone = set(lost)
        return [
            NodeMemory(node, [a for a in (*self.arenas, *self.copies) if a.layout.node == node])
            for node in self.nodes
            if node not in gone
        ]

    def manifests(self, lost: Iterable[str] = ()) -> list[Manifest]:
        return [manifest for memory in self.memories(lost) for manifest in memory.manifests()]

    def catalog(self, version: Version, here: str = "", lost: Iterable[str] = ()) -> Catalog:
        memories = self.memories(lost)
        found = [m for memory in memories for m in memory.manifests() if m.version == version]
        return Catalog(Holding(found), memories, here)

    def close(self) -> None:
        for arena in (*self.arenas, *self.copies):
            arena.close()


def wants_for(plan: Plan, worker: str, dtype: torch.dtype = torch.float32) -> list[Want]:
    """All a worker needs, its targets filled with a value no state has."""
    return [
        Want(tensor, kind.name, box, torch.full(shape_of(box), torch.nan, dtype=dtype))
        for tensor, boxes in HolderMap(plan).slices(worker).items()
        for box in boxes
        for kind in HolderMap(plan).tensors[tensor].kept().kinds
    ]


def shape_of(box: Box) -> list[int]:
    return [high - low for low, high in box]


def load_all(plan: Plan, catalog: Catalog, state: State) -> list[LoadReport]:
    """Every worker of `plan` loads; what it gets is what was saved, to the last bit."""
    reports = []
    for worker in plan.workers:
        wants = wants_for(plan, worker, next(iter(state.values())).dtype)
        catalog.here = node_of(worker)
        reports.append(assemble(wants, catalog, num_threads=1))
        check_wants(wants, state)
    return reports


def check_wants(wants: Iterable[Want], state: State) -> None:
    for want in wants:
        index = tuple(slice(low, high) for low, high in want.box)
        assert torch.equal(want.out, state[want.tensor, want.kind][index]), str(want)
