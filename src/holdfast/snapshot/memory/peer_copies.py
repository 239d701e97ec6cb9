"""Copies for slices that only one node holds: another node's agent pulls them into its memory.

Chunk by chunk, each verified against what the owner sealed, so that a copy is as good as the
original or is not made. Only this redundancy costs network; where two nodes hold a slice, parity
is made from each node's own state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import xxhash

from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.layout import LayoutEntry, Version
from holdfast.snapshot.manifest import ArenaPlace, Manifest
from holdfast.snapshot.memory.arena import SHARED_MEMORY, Arena, ArenaSlot
from holdfast.snapshot.memory.owners import arena_name, files_of
from holdfast.snapshot.memory.sources import NodeMemory, OtherHosts, Source, Unreadable


class CopyFailed(Exception):
    """The copy was given up; the previous one is as it was."""


def pull_copy(
    arena: Arena, owner: Source, version: Version, complete: Version | None = None
) -> ArenaSlot:
    """Copy what `arena` is meant to keep of a version from the node that saved it."""
    manifest = _manifest(arena, owner, version)
    slot = arena.begin(version, complete)
    try:
        for entry in arena.layout.entries:
            _pull(slot, entry, owner, manifest)
        owner.confirm(manifest.place)
    except (Unreadable, OSError) as error:
        arena.abandon()
        raise CopyFailed(f"{version} of {manifest.worker} from {owner.node}: {error}") from None
    slot.seal({entry.key: manifest.checksums[entry.key] for entry in arena.layout.entries})
    return slot


def _manifest(arena: Arena, owner: Source, version: Version) -> Manifest:
    layout = arena.layout
    wanted = ArenaPlace(layout.worker, version, layout.plan)
    for manifest in owner.manifests():
        if manifest.place == wanted and manifest.layout.chunk_bytes == layout.chunk_bytes:
            return manifest
    raise CopyFailed(f"{owner.node} has no {wanted} under plan {layout.plan}")


def _pull(slot: ArenaSlot, entry: LayoutEntry, owner: Source, manifest: Manifest) -> None:
    target, size = slot.bytes(entry.key), slot.layout.chunk_bytes
    for number, wanted in enumerate(manifest.checksums[entry.key]):
        start, stop = number * size, min((number + 1) * size, entry.num_bytes)
        chunk = target[start:stop]
        data = owner.read(manifest.place, entry.key, start, stop, chunk)
        if data is not chunk:
            chunk[:] = data
        found = xxhash.xxh3_64_intdigest(chunk)
        if found != wanted:
            raise Unreadable(
                f"chunk {number} of {entry.key!r} arrived with {found:016x}, not {wanted:016x}"
            )


class CopyKeeper:
    def __init__(
        self,
        job: str,
        node: str,
        folder: Path = SHARED_MEMORY,
        others: OtherHosts | None = None,
    ) -> None:
        self._job, self._node, self._folder, self._others = job, node, folder, others

    def copy(self, version: Version, plan: str, before: Version | None = None) -> None:
        """All that this node keeps for others; CopyFailed or HoldfastError if it cannot be had."""
        for path in files_of(node_job(self._job, self._node), self._folder):
            # Not mapped for longer: memory that the agent gives back shall be free.
            with _opened(path) as copy:
                if copy.layout.is_copy and copy.layout.plan == plan:
                    self._pull(copy, version, before)

    def _pull(self, copy: Arena, version: Version, before: Version | None) -> None:
        copy.abandon()  # the process that wrote here before is gone
        if copy.slot(version) is None:
            node = node_of(copy.layout.worker)
            layout = msgspec.structs.replace(copy.layout, node=node)
            path = self._folder / arena_name(node_job(self._job, node), layout)
            if self._others is not None and not path.exists():
                self._pull_from_host(copy, node, version, before)
                return
            with _opened(path) as own:
                pull_copy(copy, NodeMemory(node, [own]), version, before)

    def _pull_from_host(
        self, copy: Arena, node: str, version: Version, before: Version | None
    ) -> None:
        assert self._others is not None
        try:
            with self._others.open_node(node) as owner:
                pull_copy(copy, owner, version, before)
        except Unreadable as error:
            raise CopyFailed(str(error)) from None


@contextmanager
def _opened(path: Path) -> Iterator[Arena]:
    try:
        arena = Arena.open(path)
    except OSError as error:
        raise CopyFailed(f"{path.name}: {error.strerror}") from None
    try:
        yield arena
    finally:
        arena.close()
