"""Where bytes of a version can be read: the memory of this node, or of another.

A source gives bytes as they are; it promises nothing about them. The reader verifies.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import ArenaPlace, Manifest
from holdfast.snapshot.memory.arena import Arena, ArenaSlot


class Unreadable(Exception):
    """A source cannot give these bytes: it is gone, or holds another version by now."""


class Source(Protocol):
    """The memory of one node. An agent's connection to another agent is one."""

    node: str

    def manifests(self) -> list[Manifest]:
        """Of everything committed there."""

    def read(
        self, place: ArenaPlace, key: str, start: int, stop: int, into: memoryview | None = None
    ) -> memoryview:
        """Bytes `start` .. `stop - 1` of an entry or row; Unreadable, or OSError. `into`: where a
        source puts them that has to put them somewhere.
        """

    def confirm(self, place: ArenaPlace) -> None:
        """Unreadable if bytes given out earlier may have been overwritten since."""


class OtherHosts(Protocol):
    """The memory of nodes that are not on this machine, through their agents."""

    def open(self) -> AbstractContextManager[Sequence[Source]]:
        """Of all that can be reached now."""

    def open_node(self, node: str) -> AbstractContextManager[Source]:
        """Unreadable if it cannot be reached."""

    def pin(self, version: Version) -> Sequence[Source]:
        """Keep it from being overwritten on all of them, until the next call or `release`: what
        they have of it.
        """

    def release(self) -> None: ...


class NodeMemory:
    """Arenas mapped into this process. What it gives out is the memory itself, not a copy."""

    def __init__(self, node: str, arenas: Iterable[Arena]) -> None:
        self.node = node
        self.arenas = {(arena.layout.worker, arena.layout.plan): arena for arena in arenas}

    def manifests(self) -> list[Manifest]:
        slots = [
            arena.slot(version)
            for arena in self.arenas.values()
            for version in arena.versions().values()
        ]
        return [manifest_of(slot, self.node) for slot in slots if slot is not None]

    def read(
        self, place: ArenaPlace, key: str, start: int, stop: int, into: memoryview | None = None
    ) -> memoryview:
        slot = self._slot(place)
        if key not in slot.layout.by_key:
            raise Unreadable(f"{self.node} keeps no {key!r} for {place.worker}")
        return slot.memory(key)[start:stop]

    def confirm(self, place: ArenaPlace) -> None:
        self._slot(place)

    def _slot(self, place: ArenaPlace) -> ArenaSlot:
        arena = self.arenas.get((place.worker, place.plan))
        slot = arena.slot(place.version) if arena is not None else None
        if slot is None:
            raise Unreadable(f"{self.node} has no {place} any more")
        return slot


def manifest_of(slot: ArenaSlot, node: str) -> Manifest:
    return Manifest(node, slot.version, slot.layout, slot.checksums())
