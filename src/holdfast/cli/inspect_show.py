"""What `holdfast inspect` does."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from holdfast.errors import HoldfastError
from holdfast.observe.quantities import count, format_bytes
from holdfast.snapshot.arena import SHARED_MEMORY, Arena
from holdfast.snapshot.arena_file import process_start
from holdfast.snapshot.catalog import Catalog, verify
from holdfast.snapshot.checkpoints import Found, list_checkpoints
from holdfast.snapshot.dcp import Checkpoint
from holdfast.snapshot.layout import OTHER, PARITY
from holdfast.snapshot.manifest import Holding, Manifest, by_version, survey
from holdfast.snapshot.owners import files_of, jobs_in
from holdfast.snapshot.sources import NodeMemory

CHECKPOINTS = "checkpoints"


class ArenaLine(msgspec.Struct, frozen=True):
    name: str
    worker: str
    node: str
    num_bytes: int
    owner: int
    owner_lives: bool
    committed: tuple[str, ...]
    in_progress: str


class VersionLine(msgspec.Struct, frozen=True):
    job: str
    step: int
    lineage: int
    plan: str
    is_complete: bool
    is_degraded: bool
    reason: str
    num_slices: int
    num_bytes: int
    holders: tuple[str, ...]
    damage: tuple[str, ...] = ()


class CheckpointLine(msgspec.Struct, frozen=True):
    path: str
    step: int
    lineage: int
    is_valid: bool
    complaint: str
    num_bytes: int
    num_tensors: int = 0
    num_slices: int = 0


class Inspection(msgspec.Struct, frozen=True):
    arenas: tuple[ArenaLine, ...] = ()
    versions: tuple[VersionLine, ...] = ()
    checkpoints: tuple[CheckpointLine, ...] = ()
    complaints: tuple[str, ...] = ()

    @property
    def is_damaged(self) -> bool:
        return bool(self.complaints) or any(line.damage for line in self.versions)


def show(run_dir: Path | None, *, shm: bool, verify: bool, as_json: bool) -> int:
    if run_dir is None and not shm:
        raise HoldfastError("nothing to inspect: name a run directory, or --shm")
    found = Inspection()
    if shm:
        found = inspect_memory(SHARED_MEMORY, verify)
    if run_dir is not None:
        found = msgspec.structs.replace(found, checkpoints=inspect_disk(run_dir, verify))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print(found, shm, run_dir)
    invalid = verify and any(not line.is_valid for line in found.checkpoints)
    return int(found.is_damaged or invalid)


def inspect_memory(folder: Path, verify_bytes: bool) -> Inspection:
    arenas: list[ArenaLine] = []
    versions: list[VersionLine] = []
    complaints: list[str] = []
    for job in jobs_in(folder):
        with ExitStack() as stack:
            opened: list[Arena] = []
            for path in files_of(job, folder):
                try:
                    arena = Arena.open(path)
                except (HoldfastError, OSError) as error:
                    complaints.append(f"{path.name}: {error}")
                    continue
                stack.callback(arena.close)
                opened.append(arena)
                arenas.append(_arena_line(path.name, arena))
            versions += _version_lines(job, opened, verify_bytes)
    return Inspection(tuple(arenas), tuple(versions), complaints=tuple(complaints))


def _arena_line(name: str, arena: Arena) -> ArenaLine:
    pid, started = arena.owner
    begun = arena.in_progress()
    return ArenaLine(
        name=name,
        worker=arena.layout.worker,
        node=arena.layout.node,
        num_bytes=arena.memory.nbytes,
        owner=pid,
        owner_lives=started != 0 and process_start(pid) == started,
        committed=tuple(str(v) for v in sorted(arena.versions().values(), key=lambda v: v.age)),
        in_progress=str(begun.version) if begun is not None else "",
    )


def _version_lines(job: str, arenas: Sequence[Arena], verify_bytes: bool) -> list[VersionLine]:
    nodes = dict.fromkeys(arena.layout.node for arena in arenas)
    memories = [NodeMemory(n, [a for a in arenas if a.layout.node == n]) for n in nodes]
    manifests = [manifest for memory in memories for manifest in memory.manifests()]
    return [_version_line(job, group, memories, verify_bytes) for group in by_version(manifests)]


def _version_line(
    job: str, group: Sequence[Manifest], memories: Sequence[NodeMemory], verify_bytes: bool
) -> VersionLine:
    (standing,) = survey(group)
    slices = {
        entry.key: entry.num_bytes
        for manifest in group
        for entry in manifest.layout.entries
        if entry.kind not in (OTHER, PARITY)
    }
    return VersionLine(
        job=job,
        step=standing.version.step,
        lineage=standing.version.lineage,
        plan=standing.plan,
        is_complete=standing.is_complete,
        is_degraded=standing.is_degraded,
        reason=standing.reason,
        num_slices=len(slices),
        num_bytes=sum(slices.values()),
        holders=tuple(dict.fromkeys(manifest.worker for manifest in group)),
        damage=tuple(_damage(group, memories)) if verify_bytes else (),
    )


def _damage(group: Sequence[Manifest], memories: Sequence[NodeMemory]) -> list[str]:
    try:
        holding = Holding(group)
    except HoldfastError as error:
        return [str(error)]
    return [*verify(Catalog(holding, memories)), *holding.disagreements()]


def inspect_disk(run_dir: Path, verify_bytes: bool) -> tuple[CheckpointLine, ...]:
    if not run_dir.is_dir():
        raise HoldfastError(f"{run_dir} is no directory")
    inner = run_dir / CHECKPOINTS
    root = inner if inner.is_dir() else run_dir
    return tuple(_checkpoint_line(found) for found in list_checkpoints(root, verify=verify_bytes))


def _checkpoint_line(found: Found) -> CheckpointLine:
    path = Path(found.path)
    complaint, tensors, slices = found.complaint, 0, 0
    if found.is_valid:
        try:
            contents = Checkpoint(found).metadata.state_dict_metadata
            pieces = [getattr(one, "chunks", None) for one in contents.values()]
            tensors = sum(piece is not None for piece in pieces)
            slices = sum(len(piece) for piece in pieces if piece is not None)
        except HoldfastError as error:
            complaint = str(error)
    return CheckpointLine(
        path=str(path),
        step=found.version.step,
        lineage=found.version.lineage,
        is_valid=not complaint,
        complaint=complaint,
        num_bytes=sum(file.stat().st_size for file in path.iterdir() if file.is_file()),
        num_tensors=tensors,
        num_slices=slices,
    )


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
            version = f"step {line.step} (lineage {line.lineage})"
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
    table = Table("checkpoint", "lineage", "size", "contents", "state")
    for line in lines:
        lineage = str(line.lineage) if line.lineage >= 0 else "-"
        contents = f"{count(line.num_tensors, 'tensor')}, {count(line.num_slices, 'slice')}"
        state = "valid" if line.is_valid else line.complaint
        name = Path(line.path).name
        table.add_row(name, lineage, format_bytes(line.num_bytes), contents, state)
    console.print(table)
