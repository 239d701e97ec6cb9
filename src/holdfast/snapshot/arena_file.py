"""The file behind an arena: what lies where in it, who owns it, and what makes it ours.

    head | owner | persisted version | layout as text | slot heads | slots

A file has its name only once its head is written and all its memory allocated.
"""

import mmap
import os
import struct
from pathlib import Path

import msgspec
import xxhash

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import ArenaLayout, round_up

_MAGIC = b"HOLDFAST"
_FORMAT = 2
_HEAD = struct.Struct("<8sQQQQ")
"""Magic, format, bytes of the layout, digest of the layout, bytes of the file."""
_OWNER = struct.Struct("<QQ")
"""Process id and start of the owner; behind the head, since it changes hands."""
PERSISTED = struct.Struct("<qq")
"""Step and lineage of the newest version that is on disk."""
PERSISTED_AT = _HEAD.size + _OWNER.size
_TEXT_AT = PERSISTED_AT + PERSISTED.size
NO_VERSION = -1
SLOT_HEAD_BYTES = 48
"""State, version, digest, pin and hold of a slot; its checksums follow."""


class Places(msgspec.Struct, frozen=True):
    """Where things lie in the file."""

    heads: tuple[int, ...]
    slots: tuple[int, ...]
    num_bytes: int

    @classmethod
    def of(cls, layout: ArenaLayout) -> "Places":
        page = mmap.PAGESIZE
        first = round_up(_TEXT_AT + len(msgspec.json.encode(layout)), page)
        head_bytes = round_up(SLOT_HEAD_BYTES + 8 * layout.num_checksums, page)
        slot_bytes = round_up(layout.slot_bytes, page)
        data = first + layout.num_slots * head_bytes
        return cls(
            heads=tuple(first + n * head_bytes for n in range(layout.num_slots)),
            slots=tuple(data + n * slot_bytes for n in range(layout.num_slots)),
            num_bytes=data + layout.num_slots * slot_bytes,
        )


def arena_bytes(layout: ArenaLayout) -> int:
    """What an arena of this layout takes of the host's memory, all in all."""
    return Places.of(layout).num_bytes


def read_owner(fd: int) -> tuple[int, int] | None:
    """Process id of the owner, and when that process began (ids are used again); None if the
    file is no arena.
    """
    head = os.pread(fd, _HEAD.size + _OWNER.size, 0)
    if len(head) < _HEAD.size + _OWNER.size or not head.startswith(_MAGIC):
        return None
    pid, started = _OWNER.unpack_from(head, _HEAD.size)
    return pid, started


def has_name(fd: int) -> bool:
    """Can others still find the file?"""
    return os.fstat(fd).st_nlink > 0


def process_start(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name, in brackets, may hold anything; what counts follows the last bracket.
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def create_file(path: Path, layout: ArenaLayout) -> tuple[int, mmap.mmap]:
    """A new file under its name, this process its owner; its descriptor and its memory."""
    if path.exists():
        raise HoldfastError(f"{path} exists: adopt it, or remove it first")
    text, num_bytes = msgspec.json.encode(layout), arena_bytes(layout)
    partial = path.with_name(f"{path.name}.part")
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _allocate(fd, num_bytes, path)
        head = _HEAD.pack(_MAGIC, _FORMAT, len(text), layout.digest, num_bytes)
        nothing = PERSISTED.pack(NO_VERSION, NO_VERSION)
        os.pwrite(fd, head + _own_mark() + nothing + text, 0)
        memory = map_file(fd, num_bytes)
        partial.rename(path)
    except BaseException:
        os.close(fd)
        partial.unlink(missing_ok=True)
        raise
    return fd, memory


def map_file(fd: int, num_bytes: int) -> mmap.mmap:
    """All pages at once: the first copy into them is then as fast as the next."""
    return mmap.mmap(fd, num_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)


def write_owner(fd: int) -> None:
    """This process owns the file from now on."""
    os.pwrite(fd, _own_mark(), _HEAD.size)


def _own_mark() -> bytes:
    return _OWNER.pack(os.getpid(), process_start(os.getpid()))


def _allocate(fd: int, num_bytes: int, path: Path) -> None:
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError as error:
        raise HoldfastError(
            f"{path} needs {num_bytes} bytes of shared memory: {error.strerror}; lower the "
            f"snapshot's share of host memory, or enlarge {path.parent}"
        ) from None


def read_layout(fd: int) -> ArenaLayout:
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise HoldfastError(f"descriptor {fd} is no arena: it begins with {head[:8]!r}")
    _, form, num_text, digest, num_bytes = _HEAD.unpack(head)
    if form != _FORMAT:
        raise HoldfastError(f"the arena has format {form}, this program reads {_FORMAT}")
    actual = os.fstat(fd).st_size
    if actual != num_bytes:
        raise HoldfastError(f"the arena has {actual} bytes, its head says {num_bytes}")
    text = os.pread(fd, num_text, _TEXT_AT)
    if xxhash.xxh3_64_intdigest(text) != digest:
        raise HoldfastError("the layout of the arena is damaged: its checksum does not fit")
    try:
        return msgspec.json.decode(text, type=ArenaLayout)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"the layout of the arena is damaged: {error}") from None
