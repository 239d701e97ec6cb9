"""Loading a worker's slices: from what is left of a version in memory, or from a checkpoint.

Every arena of the job that this machine can reach is a source, and so is the memory of other hosts,
through their agents; all bytes are verified.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import choose_checkpoint
from holdfast.snapshot.disk.dcp import Checkpoint
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.assemble import StateSlice, Want, assemble
from holdfast.snapshot.load.recover import RestoredVersion, recover
from holdfast.snapshot.memory.arena import SHARED_MEMORY
from holdfast.snapshot.memory.job_memory import open_memories
from holdfast.snapshot.memory.sources import OtherHosts, Source


class CannotRestore(HoldfastError):
    """A version cannot be had from anywhere, although it was said to be whole."""

    def __init__(self, version: Version, why: str) -> None:
        super().__init__(f"{version}: {why}")
        self.version = version


class Loaded(msgspec.Struct, frozen=True):
    version: Version
    num_updates: int
    bytes_by_origin: dict[str, int]
    reasons: tuple[str, ...]
    """Why some of it did not come from where it was looked for first."""


def load_snapshot(
    slices: Mapping[str, StateSlice],
    version: Version,
    *,
    job: str,
    node: str,
    checkpoints: str = "",
    folder: Path = SHARED_MEMORY,
    others: OtherHosts | None = None,
) -> Loaded:
    """Fill all slices with this version and no other; CannotRestore if it cannot be had."""
    root = Path(checkpoints) if checkpoints else None
    with open_sources(job, folder, others) as memories:
        try:
            found = recover(
                wants_of(slices), memories, root, here=node, accept=lambda held: held == version
            )
        except HoldfastError as error:
            read = ", ".join(memory.node for memory in memories) or "no node"
            raise CannotRestore(version, f"{error}; the memory of {read} was looked at") from None
        return _loaded(found)


def load_newest(
    slices: Mapping[str, StateSlice],
    accept: Callable[[Version], bool],
    *,
    job: str,
    node: str,
    folder: Path = SHARED_MEMORY,
    others: OtherHosts | None = None,
) -> Loaded | None:
    """Fill all slices with the newest version in memory that is acceptable; None: there is none,
    and what the slices hold is undefined.
    """
    with open_sources(job, folder, others) as memories:
        try:
            return _loaded(recover(wants_of(slices), memories, here=node, accept=accept))
        except HoldfastError:
            return None


@contextmanager
def open_sources(job: str, folder: Path, others: OtherHosts | None) -> Iterator[list[Source]]:
    """This machine's memory first; that of a node is read here where it can be."""
    elsewhere = others.open() if others is not None else nullcontext(())
    with open_memories(job, folder) as here, elsewhere as there:
        own = [memory.node for memory in here]
        yield [*here, *(source for source in there if source.node not in own)]


def _loaded(found: RestoredVersion) -> Loaded:
    version, report = found.choice.version, found.report
    reasons = (*found.passed, *report.reasons())
    return Loaded(version, _updates(found.values, version), report.bytes_by_origin(), reasons)


def load_checkpoint(slices: Mapping[str, StateSlice], root: Path, step: int) -> Loaded:
    """Fill all slices from the checkpoint of one step."""
    checkpoint = Checkpoint(choose_checkpoint(root, step))
    report = assemble(wants_of(slices), None, checkpoint)
    updates = _updates(checkpoint.values(), checkpoint.version)
    return Loaded(checkpoint.version, updates, report.bytes_by_origin(), ())


def wants_of(slices: Mapping[str, StateSlice]) -> list[Want]:
    return [
        Want(piece.tensor, kind, piece.box, piece.part(kind, piece.box))
        for piece in slices.values()
        for kind in piece.kinds
    ]


def _updates(values: Mapping[str, object], version: Version) -> int:
    """Of the optimizer; a plain loop that does not say applies every step."""
    found = values.get("step", version.step)
    return found if isinstance(found, int) else version.step
