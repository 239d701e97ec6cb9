"""One worker's share of a node's shared memory: two versions of its state, each whole or unusable.

Theory of operation.

*Where.* An arena is a named file in the shared-memory file system, made by the node's agent, whose
descriptor is passed to the worker. The name is what lets a restarted agent find it again: an
anonymous memory file outlives the worker but not the agent that holds it. The price is that names
must be removed, which `owners` does. All pages are allocated when the file is made, so that a full
machine shows there, as an error, and not later as a killed process.

*What.* A head (magic, sizes), the owner's process, the layout as text, two slot heads, two slots:

    head | owner | layout | slot head 0 | slot head 1 | slot 0 | slot 1

*Commit.* A slot head is (state, step, agreed_in, digest) and the checksums of all chunks. `begin`
takes the slot that does not hold the version to be kept and marks it in progress before a byte of
it is written. `seal` writes checksums, then the digest over version and checksums, then, last, the
state. A process killed anywhere in between leaves a slot that is in progress, or whose digest does
not fit: both read as empty. The other slot was not touched.

*Pin.* A process that reads a committed version for long may pin it in the slot's head, and the
agent may hold some; `begin` takes another slot then. A hold gives way to a pin where there is no
slot for both. Between looking and taking, either may come too late: every reader verifies what it
reads.

*Who.* One writer at a time: the agent reaps a worker before its arena is used again. What a dead
writer left in progress stays marked until `abandon`, so that a second writer cannot slip in
unnoticed.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from holdfast.errors import HoldfastError, invariant
from holdfast.snapshot.arena_places import SLOT_HEAD_BYTES, ArenaPlaces, arena_bytes
from holdfast.snapshot.layout import ArenaLayout, LayoutEntry, Version
from holdfast.snapshot.memory.arena_file import (
    create_file,
    map_file,
    populate,
    read_layout,
    read_owner,
    write_owner,
)

if TYPE_CHECKING:
    import torch

__all__ = ["Arena", "ArenaLayout", "ArenaSlot", "LayoutEntry", "Version"]

SHARED_MEMORY = Path("/dev/shm")

_SLOT = struct.Struct("<QqqQ")
"""State, step, agreed_in, digest: 32 bytes."""
_STATE = struct.Struct("<Q")
_HOLD_AT = _SLOT.size + _STATE.size
"""In a slot's head, behind the pin."""
_EMPTY, _IN_PROGRESS, _COMMITTED = 0, 1, 2


class ArenaSlot:
    """One version in an arena: writable while in progress, to be left alone once committed."""

    def __init__(self, arena: "Arena", number: int, version: Version) -> None:
        self._arena, self._number, self.version = arena, number, version

    @property
    def layout(self) -> ArenaLayout:
        return self._arena.layout

    @property
    def is_in_progress(self) -> bool:
        return self._arena._read_slot(self._number)[:3] == (_IN_PROGRESS, *_pair(self.version))

    def bytes(self, key: str) -> memoryview:
        """The memory of one entry; read-only once the version is committed."""
        view = self.memory(key)
        return view if self.is_in_progress else view.toreadonly()

    def memory(self, key: str) -> memoryview:
        """The same without that guard, for readers that torch would warn."""
        return self._arena._view(self._number, self._entry(key))

    def tensor(self, key: str) -> "torch.Tensor":
        """The same memory as a flat uint8 tensor. (torch knows no read-only tensors.)"""
        import torch

        view = self.memory(key)
        if not view.nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(view, dtype=torch.uint8)

    def seal(self, checksums: dict[str, list[int]]) -> None:
        """Commit: everything is in place, and these are its checksums."""
        table = self._table(checksums)
        self._arena._commit(self._number, self.version, table)

    def checksums(self) -> dict[str, list[int]]:
        """What was sealed, by key, also for the entries that parity rows stand for."""
        table = self._arena._read_table(self._number)
        found: dict[str, list[int]] = {}
        start = 0
        for entry in self.layout.checked:
            stop = start + self.layout.num_chunks(entry)
            found[entry.key] = list(table[start:stop])
            start = stop
        return found

    def _entry(self, key: str) -> LayoutEntry:
        entry = self.layout.by_key.get(key)
        if entry is None:
            raise HoldfastError(f"the arena {self._arena.name} has no entry {key!r}")
        return entry

    def _table(self, checksums: dict[str, list[int]]) -> list[int]:
        table: list[int] = []
        for entry in self.layout.checked:
            given, wanted = checksums.get(entry.key), self.layout.num_chunks(entry)
            if given is None or len(given) != wanted:
                have = "none" if given is None else len(given)
                raise HoldfastError(f"{entry.key!r} needs {wanted} checksums, {have} given")
            table.extend(given)
        extra = len(checksums) - len(self.layout.checked)
        invariant(extra == 0, f"{extra} checksums are for entries the arena does not have")
        return table


class Arena:
    """Use `create`, `attach` or `open`."""

    def __init__(self, fd: int, memory: mmap.mmap, layout: ArenaLayout) -> None:
        self.fd, self._memory, self.layout = fd, memory, layout
        self._whole = memoryview(memory)
        self._places = ArenaPlaces.of(layout)
        self._numbers = range(layout.num_slots)

    @classmethod
    def create(cls, name: str, layout: ArenaLayout, folder: Path = SHARED_MEMORY) -> "Arena":
        """A new arena under `folder/name`, all its memory allocated; the caller owns it. It has
        its name only once it is usable.
        """
        layout.check()
        fd, memory = create_file(folder / name, layout)
        return cls(fd, memory, layout)

    @classmethod
    def open(cls, path: Path) -> "Arena":
        """Map an arena by its name."""
        return cls.attach(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @classmethod
    def attach(cls, fd: int) -> "Arena":
        """Map the arena behind a descriptor, which belongs to the arena from now on."""
        try:
            layout = read_layout(fd)
            memory = map_file(fd, arena_bytes(layout))
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, memory, layout)

    @property
    def name(self) -> str:
        """Where it was found; "(gone)" is in it when the name was removed since."""
        return os.readlink(f"/proc/self/fd/{self.fd}")

    @property
    def memory(self) -> memoryview:
        """All of it, for registration with a device."""
        return self._whole

    @property
    def owner(self) -> tuple[int, int]:
        """Process id of the owner, and when that process began."""
        owner = read_owner(self.fd)
        invariant(owner is not None, f"{self.name} lost its head")
        return owner or (0, 0)

    def populate(self) -> None:
        """Have all of it mapped before the first copy. It may take seconds, on any thread."""
        populate(self._whole)

    def take_over(self) -> None:
        """This process owns the arena from now on."""
        write_owner(self.fd)

    def begin(self, version: Version, complete: Version | None = None) -> ArenaSlot:
        """Start writing a version. Kept is the slot with `complete`, the newest version known to
        be complete everywhere; without that knowledge, the newest committed one.
        """
        open_slot = self.in_progress()
        if open_slot is not None:
            raise HoldfastError(
                f"{version} cannot begin: {open_slot.version} is in progress in {self.name}; "
                f"seal or abandon it first"
            )
        held = self.versions()
        if version in held.values():
            raise HoldfastError(f"{version} is already committed in {self.name}")
        free = self._free_slots(held, complete)
        number = min(free, key=lambda n: held[n].age if n in held else (-1, n))
        self._write_state(number, _EMPTY)
        self._set_hold(number, is_held=False)
        _SLOT.pack_into(self._whole, self._places.heads[number], _EMPTY, *_pair(version), 0)
        self._write_state(number, _IN_PROGRESS)
        return ArenaSlot(self, number, version)

    def _free_slots(self, held: dict[int, Version], complete: Version | None) -> list[int]:
        keep = complete if complete in held.values() else newest_of(held.values())
        pinned = [n for n in held if self._is_pinned(n)]
        taken = [*pinned, *(n for n in held if self._is_held(n))]
        free = [n for n in self._numbers if n not in taken and (n not in held or held[n] != keep)]
        # What is held, or at least what is pinned, is whole; one version at most is pinned.
        free = free or [n for n in self._numbers if n not in taken]
        return free or [n for n in self._numbers if n not in pinned]

    def pin(self, version: Version) -> bool:
        """Keep a version from being overwritten, while it is persisted, say; at most one at a
        time. False if it is not there. The worker goes on with what other slots there are.
        """
        number = next((n for n, held in self.versions().items() if held == version), None)
        # In one go: a version that is pinned already stays so all the while.
        for other in self._numbers:
            self._set_pin(other, is_pinned=other == number)
        # The worker may have begun to overwrite it just before it could see the pin.
        if number is not None and self._committed(number) == version:
            return True
        self.unpin()
        return False

    def unpin(self) -> None:
        for number in self._numbers:
            self._set_pin(number, is_pinned=False)

    def hold(self, versions: Collection[Version]) -> None:
        """Keep those of these that are there, and no others, until the next call: it is the
        agent's, while other nodes copy them.
        """
        held = self.versions()
        for number in self._numbers:
            self._set_hold(number, is_held=held.get(number) in versions)
        for number, version in held.items():
            if self._committed(number) != version:  # it was begun to be overwritten meanwhile
                self._set_hold(number, is_held=False)

    def _set_hold(self, number: int, *, is_held: bool) -> None:
        _STATE.pack_into(self._whole, self._places.heads[number] + _HOLD_AT, int(is_held))

    def _is_held(self, number: int) -> bool:
        (flag,) = _STATE.unpack_from(self._whole, self._places.heads[number] + _HOLD_AT)
        return bool(flag)

    def _set_pin(self, number: int, *, is_pinned: bool) -> None:
        _STATE.pack_into(self._whole, self._places.heads[number] + _SLOT.size, int(is_pinned))

    def _is_pinned(self, number: int) -> bool:
        (flag,) = _STATE.unpack_from(self._whole, self._places.heads[number] + _SLOT.size)
        return bool(flag)

    def in_progress(self) -> ArenaSlot | None:
        for number in self._numbers:
            state, step, agreed_in, _ = self._read_slot(number)
            if state == _IN_PROGRESS:
                return ArenaSlot(self, number, Version(step, agreed_in))
        return None

    def versions(self) -> dict[int, Version]:
        """The committed versions by slot.

        While a writer is at work, one slot may be sealed and the other begun between two looks:
        what is returned was true of both at one moment.
        """
        while True:
            before = [self._read_slot(number) for number in self._numbers]
            found = {number: self._committed(number) for number in self._numbers}
            if before == [self._read_slot(number) for number in self._numbers]:
                return {number: held for number, held in found.items() if held is not None}

    def newest(self) -> ArenaSlot | None:
        held = self.versions()
        if not held:
            return None
        number = max(held, key=lambda n: held[n].age)
        return ArenaSlot(self, number, held[number])

    def slot(self, version: Version) -> ArenaSlot | None:
        """The committed slot of a version."""
        return next(
            (ArenaSlot(self, n, v) for n, v in self.versions().items() if v == version), None
        )

    def abandon(self) -> None:
        """Throw away what is in progress."""
        for number in self._numbers:
            if self._read_slot(number)[0] == _IN_PROGRESS:
                self._write_state(number, _EMPTY)

    def roll_back(self, version: Version) -> None:
        """Training goes on from `version`: what came after it, or beside it, is discarded."""
        self.abandon()
        for number, held in self.versions().items():
            if held.age > version.age or (held.step == version.step and held != version):
                self._write_state(number, _EMPTY)

    def close(self) -> None:
        """Unmap, as far as no view of it is in use; the file and its content stay."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        with contextlib.suppress(BufferError):  # a view is in use: unmapped when it is dropped
            self._whole.release()
            self._memory.close()

    def _view(self, number: int, entry: LayoutEntry) -> memoryview:
        start = self._places.slots[number] + self.layout.offsets[entry.key]
        return self._whole[start : start + entry.num_bytes]

    def _read_slot(self, number: int) -> tuple[int, int, int, int]:
        state, step, agreed_in, digest = _SLOT.unpack_from(self._whole, self._places.heads[number])
        return state, step, agreed_in, digest

    def _write_state(self, number: int, state: int) -> None:
        _STATE.pack_into(self._whole, self._places.heads[number], state)

    def _raw_table(self, number: int) -> memoryview:
        start = self._places.heads[number] + SLOT_HEAD_BYTES
        return self._whole[start : start + 8 * self.layout.num_checksums]

    def _read_table(self, number: int) -> tuple[int, ...]:
        return struct.unpack(f"<{self.layout.num_checksums}Q", self._raw_table(number))

    def _slot_digest(self, number: int, version: Version) -> int:
        about = struct.pack("<Qqq", self.layout.digest, *_pair(version))
        return xxhash.xxh3_64_intdigest(about + bytes(self._raw_table(number)))

    def _committed(self, number: int) -> Version | None:
        state, step, agreed_in, digest = self._read_slot(number)
        version = Version(step, agreed_in)
        if state != _COMMITTED or digest != self._slot_digest(number, version):
            return None
        return version

    def _commit(self, number: int, version: Version, table: list[int]) -> None:
        if self._read_slot(number)[:3] != (_IN_PROGRESS, *_pair(version)):
            raise HoldfastError(f"{version} is not in progress any more in {self.name}")
        struct.pack_into(f"<{len(table)}Q", self._raw_table(number), 0, *table)
        digest = self._slot_digest(number, version)
        head = self._places.heads[number]
        _SLOT.pack_into(self._whole, head, _IN_PROGRESS, *_pair(version), digest)
        self._write_state(number, _COMMITTED)


def newest_of(versions: Iterable[Version]) -> Version | None:
    return max(versions, key=lambda version: version.age, default=None)


def _pair(version: Version) -> tuple[int, int]:
    return version.step, version.agreed_in
