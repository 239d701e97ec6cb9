"""Copies for slices that only one node holds: another node's agent pulls them into its memory.

Chunk by chunk, each verified against what the owner sealed, so that a copy is as good as the
original or is not made. Only this redundancy costs network; where two nodes hold a slice, parity
is made from each node's own state.
"""

import xxhash

from holdfast.snapshot.arena import Arena, ArenaSlot
from holdfast.snapshot.layout import LayoutEntry, Version
from holdfast.snapshot.manifest import ArenaPlace, Manifest
from holdfast.snapshot.sources import Source, Unreadable


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
        target[start:stop] = owner.read(manifest.place, entry.key, start, stop)
        found = xxhash.xxh3_64_intdigest(target[start:stop])
        if found != wanted:
            raise Unreadable(
                f"chunk {number} of {entry.key!r} arrived with {found:016x}, not {wanted:016x}"
            )
