"""What `holdfast inspect` prints."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from holdfast.errors import HoldfastError
from holdfast.observe.quantities import count, format_bytes
from holdfast.observe.run_directory import JOURNAL
from holdfast.snapshot.load.inspection import (
    CheckpointLine,
    Inspection,
    inspect_disk,
    inspect_memory,
)
from holdfast.snapshot.memory.arena import SHARED_MEMORY


def show(run_dir: Path | None, *, shm: bool, verify: bool, as_json: bool) -> int:
    if run_dir is None and not shm:
        raise HoldfastError("nothing to inspect: name a run directory, or --shm")
    found = Inspection()
    if shm:
        found = inspect_memory(SHARED_MEMORY, verify)
    if run_dir is not None:
        checkpoints = inspect_disk(run_dir, verify)
        if not checkpoints and not (run_dir / JOURNAL).is_file():
            raise HoldfastError(f"{run_dir} has no checkpoints, and is no run directory")
        found = msgspec.structs.replace(found, checkpoints=checkpoints)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print(found, shm, run_dir)
    invalid = verify and any(not line.is_valid for line in found.checkpoints)
    return int(found.is_damaged or invalid)


def _print(found: Inspection, shm: bool, run_dir: Path | None) -> None:
    console = Console(highlight=False)
    if shm:
        _print_memory(console, found)
    if run_dir is not None:
        _print_checkpoints(console, found.checkpoints)


def _print_memory(console: Console, found: Inspection) -> None:
    if not found.arenas and not found.complaints:
        console.print("No snapshots in shared memory.")
    if found.arenas:
        table = Table("arena", "node", "size", "owner", "committed", "in progress")
        for arena in found.arenas:
            owner = f"{arena.owner}" + ("" if arena.owner_lives else " (gone)")
            size, held = format_bytes(arena.num_bytes), ", ".join(arena.committed)
            table.add_row(arena.name, arena.node, size, owner, held, arena.in_progress)
        console.print(table)
    if found.versions:
        table = Table("job", "version", "slices", "size", "holders", "state")
        for line in found.versions:
            version = f"step {line.step} (epoch {line.agreed_in})"
            state = line.reason if line.is_complete else f"incomplete: {line.reason}"
            holders = ", ".join(line.holders)
            size = format_bytes(line.num_bytes)
            table.add_row(line.job, version, str(line.num_slices), size, holders, state)
        console.print(table)
    for text in (*found.complaints, *(text for line in found.versions for text in line.damage)):
        console.print(f"damaged: {text}", soft_wrap=True)


def _print_checkpoints(console: Console, lines: Sequence[CheckpointLine]) -> None:
    if not lines:
        console.print("No checkpoints.")
        return
    table = Table("checkpoint", "epoch", "size", "contents", "state")
    for line in lines:
        epoch = str(line.agreed_in) if line.agreed_in >= 0 else "-"
        contents = f"{count(line.num_tensors, 'tensor')}, {count(line.num_slices, 'slice')}"
        state = "valid" if line.is_valid else line.complaint
        name = Path(line.path).name
        table.add_row(name, epoch, format_bytes(line.num_bytes), contents, state)
    console.print(table)
