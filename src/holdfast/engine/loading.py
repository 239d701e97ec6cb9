"""Loading a worker's slices: from what is left of a version in memory, or from a checkpoint.

Every arena of the job that this machine can reach is a source; all bytes are verified. (Nodes on
other machines would be reached over their agents; there is no such way yet.)
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.engine.state import KINDS, Slice
from holdfast.errors import HoldfastError
from holdfast.snapshot.arena import SHARED_MEMORY, Arena
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.assemble import Want, assemble
from holdfast.snapshot.checkpoints import choose_checkpoint
from holdfast.snapshot.dcp import Checkpoint
from holdfast.snapshot.layout import Version
from holdfast.snapshot.owners import files_of, jobs_in
from holdfast.snapshot.recover import recover
from holdfast.snapshot.sources import NodeMemory


class CannotRestore(HoldfastError):
    """A version cannot be had from anywhere, whoever said it was whole."""

    def __init__(self, version: Version, why: str) -> None:
        super().__init__(f"{version}: {why}")
        self.version = version


class Loaded(msgspec.Struct, frozen=True):
    version: Version
    num_updates: int
    bytes_by_origin: dict[str, int]
    reasons: tuple[str, ...]
    """Why some of it did not come from where it was looked for first."""


def arena_files(job: str, folder: Path = SHARED_MEMORY) -> list[Path]:
    """Of all nodes of a job that are on this machine."""
    jobs = [found for found in jobs_in(folder) if found.startswith(node_job(job, ""))]
    return [path for found in jobs for path in files_of(found, folder)]


@contextmanager
def open_memories(job: str, folder: Path = SHARED_MEMORY) -> Iterator[list[NodeMemory]]:
    arenas: list[Arena] = []
    for path in arena_files(job, folder):
        try:
            arenas.append(Arena.open(path))
        except (HoldfastError, OSError) as error:
            print(f"{path.name} cannot be used: {error}", flush=True)
    try:
        yield memories_of(arenas)
    finally:
        for arena in arenas:
            arena.close()


def memories_of(arenas: Iterable[Arena]) -> list[NodeMemory]:
    by_node: dict[str, list[Arena]] = {}
    for arena in arenas:
        by_node.setdefault(arena.layout.node, []).append(arena)
    return [NodeMemory(node, found) for node, found in by_node.items()]


def load_snapshot(
    slices: Mapping[str, Slice],
    version: Version,
    *,
    job: str,
    node: str,
    checkpoints: str = "",
    folder: Path = SHARED_MEMORY,
) -> Loaded:
    """Fill all slices with this version and no other; CannotRestore if it cannot be had."""
    root = Path(checkpoints) if checkpoints else None
    with open_memories(job, folder) as memories:
        try:
            found = recover(
                wants_of(slices), memories, root, here=node, accept=lambda held: held == version
            )
        except HoldfastError as error:
            raise CannotRestore(version, str(error)) from None
        report = found.report
        reasons = (*found.passed, *report.reasons())
        return Loaded(version, _updates(found.values, version), report.bytes_by_origin(), reasons)


def load_checkpoint(slices: Mapping[str, Slice], root: Path, step: int) -> Loaded:
    """Fill all slices from the checkpoint of one step."""
    checkpoint = Checkpoint(choose_checkpoint(root, step))
    report = assemble(wants_of(slices), None, checkpoint)
    updates = _updates(checkpoint.values(), checkpoint.version)
    return Loaded(checkpoint.version, updates, report.bytes_by_origin(), ())


def wants_of(slices: Mapping[str, Slice]) -> list[Want]:
    return [
        Want(piece.tensor, kind, piece.box, piece.part(kind, piece.box))
        for piece in slices.values()
        for kind in KINDS
    ]


def _updates(values: Mapping[str, object], version: Version) -> int:
    """Of the optimizer; a plain loop that does not say applies every step."""
    found = values.get("step", version.step)
    return found if isinstance(found, int) else version.step
