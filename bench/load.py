"""How much faster is state loaded from memory than from disk?

1 GB of state (parameters and two moments, fp32) of a Llama, saved under replicas 2 x tensor 2 on
two nodes, is loaded by one process into tensors it has already allocated, alternating:

    memory      from the nodes' arenas in shared memory, every chunk verified by its checksum
    one lost    the same with one node's memory gone: its half is computed from parity
    disk        plain torch.distributed.checkpoint.load of a plain DCP directory, pages evicted
    cached      the same with the files in the page cache

The first is what a restarted worker does after a crash, the third what it would have to do without
snapshots. "cached" shows how much of the difference is the disk itself.

Goal: loading from memory is at least 5 times as fast as from disk (lower bound of the median of
paired ratios, 95 %). What is loaded is equal to what was saved, to the last bit.
"""

import argparse
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from _common import Goal, compare, finish, interleave, parse_args, print_table
from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.plan import Plan
from holdfast.snapshot.copying.copier import Copier
from holdfast.snapshot.layout import PARITY, LayoutEntry
from holdfast.snapshot.load.assemble import Want, assemble
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.loop_state import pack_loop_state
from holdfast.snapshot.manifest import Holding
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.memory.owners import arena_name, remove
from holdfast.snapshot.memory.sources import NodeMemory
from holdfast.snapshot.share import plan_shares

VERSION = Version(100, 1)
SHAPE = LlamaShape(dim=768, num_layers=10, num_heads=12, num_kv_heads=4, hidden=2048, vocab=16384)
"""About 1 GB of state. `--quick` has fewer rounds of the same: with less state the fixed costs of
a load would be measured.
"""
State = dict[tuple[str, str], Tensor]


def random_state(plan: Plan) -> State:
    generator = torch.Generator().manual_seed(1)
    return {
        (name, kind.name): torch.rand(spec.shape, generator=generator)
        for name, spec in HolderMap(plan).tensors.items()
        for kind in spec.kept().kinds
    }


def fill(arena: Arena, state: State) -> None:
    """What a worker does at every snapshot."""

    def source(entry: LayoutEntry) -> Tensor:
        if not entry.tensor:
            packed = pack_loop_state({"step": VERSION.step}, entry.num_bytes)
            return torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        return state[entry.tensor, entry.kind][tuple(slice(low, high) for low, high in entry.box)]

    copier = Copier(arena)
    checked = arena.layout.checked
    copier.begin(VERSION, {entry.key: source(entry) for entry in checked if entry.kind != PARITY})
    copier.finish()
    copier.stop()


def memory_loader(arenas: list[Arena], nodes: list[str], targets: State) -> Callable[[], object]:
    """Load through manifests, as after a restart: nothing is known but the arenas."""
    wants = [
        Want(tensor, kind, tuple((0, size) for size in target.shape), target)
        for (tensor, kind), target in targets.items()
    ]

    def load() -> None:
        memories = [NodeMemory(n, [a for a in arenas if a.layout.node == n]) for n in nodes]
        manifests = [manifest for memory in memories for manifest in memory.manifests()]
        assemble(wants, Catalog(Holding(manifests), memories, here=nodes[0]))

    return load


def tree_of(state: State) -> dict[str, Tensor]:
    return {f"{tensor}.{kind}": value for (tensor, kind), value in state.items()}


def disk_loader(folder: Path, targets: State, *, evict: bool) -> Callable[[], object]:
    def load() -> None:
        if evict:
            evict_pages(folder)
        dcp_load(tree_of(targets), checkpoint_id=folder, no_dist=True)

    return load


def evict_pages(folder: Path) -> None:
    """Out of the page cache, so that reading them means reading the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def check(load: Callable[[], object], targets: State, state: State, name: str) -> None:
    for target in targets.values():
        target.fill_(torch.nan)
    load()
    for key, value in state.items():
        if not torch.equal(targets[key], value):
            raise SystemExit(f"{name}: {key} is not what was saved")


def measure(quick: bool, disk: Path) -> tuple[dict[str, list[float]], int]:
    plan = regular_plan(
        llama_units(SHAPE), replicas=2, tensor=2, micro_batches=2, devices_per_node=2
    )
    state = random_state(plan)
    targets = {key: torch.zeros_like(value) for key, value in state.items()}
    job, folder = uuid.uuid4().hex, disk / "step-100"
    arenas: list[Arena] = []
    try:
        for layout in plan_shares(plan).layouts:
            arenas.append(Arena.create(arena_name(job, layout), layout))
            fill(arenas[-1], state)
        dcp_save(tree_of(state), checkpoint_id=folder, no_dist=True)
        loaders = {
            "memory": memory_loader(arenas, ["n0", "n1"], targets),
            "one lost": memory_loader(arenas, ["n1"], targets),
            "disk": disk_loader(folder, targets, evict=True),
            "cached": disk_loader(folder, targets, evict=False),
        }
        for name, load in loaders.items():
            check(load, targets, state, name)
        seconds = interleave(loaders, rounds=5 if quick else 9)
    finally:
        for arena in arenas:
            arena.close()
        remove(job)
    return seconds, sum(value.numel() * 4 for value in state.values())


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--disk", type=Path, help="a folder on the disk to compare with")


def main() -> None:
    args = parse_args(__doc__, extend=options)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    disk = Path(tempfile.mkdtemp(prefix="holdfast-load-", dir=args.disk))
    try:
        seconds, num_bytes = measure(args.quick, disk)
    finally:
        shutil.rmtree(disk)
    rows, ratios = [], {}
    for name, times in seconds.items():
        ratios[name] = compare(times, seconds["memory"])
        middle = sorted(times)[len(times) // 2]
        rows.append(
            {
                "source": name,
                "seconds": middle,
                "GB/s": num_bytes / middle / 1e9,
                "times memory": ratios[name].median,
            }
        )
    print_table(f"loading {num_bytes / 1e9:.2f} GB of state", rows)
    goals = [Goal("disk / memory", ratios["disk"].low, 5.0, at_most=False)]
    finish(goals, args.json, {"bytes": num_bytes, "seconds": seconds, "rows": rows})


if __name__ == "__main__":
    main()
