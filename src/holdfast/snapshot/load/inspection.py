"""What is there of saved state, in memory and on disk, and what is wrong with it."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.snapshot.arena_plan import job_of
from holdfast.snapshot.disk.checkpoints import Found, list_checkpoints
from holdfast.snapshot.disk.dcp import Checkpoint
from holdfast.snapshot.layout import OTHER, PARITY
from holdfast.snapshot.load.catalog import Catalog, verify
from holdfast.snapshot.manifest import Holding, Manifest, by_version, survey
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.memory.arena_file import process_start
from holdfast.snapshot.memory.job_memory import memories_of
from holdfast.snapshot.memory.owners import files_of, jobs_in
from holdfast.snapshot.memory.sources import NodeMemory

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
    agreed_in: int
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
    agreed_in: int
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


def inspect_memory(folder: Path, verify_bytes: bool) -> Inspection:
    """All jobs that have arenas in the folder. Every node owns its arenas under a name of its own
    (`node_job`); a version is whole or not over all nodes of the job together.
    """
    arenas: list[ArenaLine] = []
    complaints: list[str] = []
    with ExitStack() as stack:
        by_job: dict[str, list[Arena]] = {}
        for owner in jobs_in(folder):
            for path in files_of(owner, folder):
                try:
                    arena = Arena.open(path)
                except (HoldfastError, OSError) as error:
                    complaints.append(f"{path.name}: {error}")
                    continue
                stack.callback(arena.close)
                arenas.append(_arena_line(path.name, arena))
                by_job.setdefault(job_of(owner, arena.layout.node), []).append(arena)
        versions = [
            line
            for job, opened in by_job.items()
            for line in _version_lines(job, opened, verify_bytes)
        ]
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
    memories = memories_of(arenas)
    manifests = [manifest for memory in memories for manifest in memory.manifests()]
    return [_version_line(job, group, memories, verify_bytes) for group in by_version(manifests)]


def _version_line(
    job: str, group: Sequence[Manifest], memories: Sequence[NodeMemory], verify_bytes: bool
) -> VersionLine:
    (status,) = survey(group)
    slices = {
        entry.key: entry.num_bytes
        for manifest in group
        for entry in manifest.layout.entries
        if entry.kind not in (OTHER, PARITY)
    }
    return VersionLine(
        job=job,
        step=status.version.step,
        agreed_in=status.version.agreed_in,
        plan=status.plan,
        is_complete=status.is_complete,
        is_degraded=status.is_degraded,
        reason=status.reason,
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
        agreed_in=found.version.agreed_in,
        is_valid=not complaint,
        complaint=complaint,
        num_bytes=sum(file.stat().st_size for file in path.iterdir() if file.is_file()),
        num_tensors=tensors,
        num_slices=slices,
    )
