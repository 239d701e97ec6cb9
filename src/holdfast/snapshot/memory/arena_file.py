"""The file behind an arena: who owns it, and what makes it ours. What lies where: `arena_places`.

A file has its name only once its head is written and all its memory allocated.
"""

import ctypes
import mmap
import os
from pathlib import Path

import msgspec
import xxhash

from holdfast.errors import HoldfastError
from holdfast.snapshot.arena_places import HEAD, OWNER, TEXT_AT, arena_bytes
from holdfast.snapshot.layout import ArenaLayout

_MAGIC = b"HOLDFAST"
_FORMAT = 3
_MADV_POPULATE_WRITE = 23
_POPULATED_BYTES = 64 * 2**20
_LIBC = ctypes.CDLL(None)


def read_owner(fd: int) -> tuple[int, int] | None:
    """Process id of the owner, and when that process began (ids are used again); None if the
    file is no arena.
    """
    head = os.pread(fd, HEAD.size + OWNER.size, 0)
    if len(head) < HEAD.size + OWNER.size or not head.startswith(_MAGIC):
        return None
    pid, started = OWNER.unpack_from(head, HEAD.size)
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
        head = HEAD.pack(_MAGIC, _FORMAT, len(text), layout.digest, num_bytes)
        os.pwrite(fd, head + _own_mark() + text, 0)
        memory = map_file(fd, num_bytes)
        partial.rename(path)
    except BaseException:
        os.close(fd)
        partial.unlink(missing_ok=True)
        raise
    return fd, memory


def map_file(fd: int, num_bytes: int) -> mmap.mmap:
    return mmap.mmap(fd, num_bytes, mmap.MAP_SHARED)


def populate(memory: memoryview) -> None:
    """Map every page, so that the first copy into them is as fast as the next (it takes four times
    as long without). A GB takes half a second: it is done on a thread beside the training, in
    slices, and without the interpreter's lock, which `mmap.MAP_POPULATE` would hold all the while.
    """
    start, stop = ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory.nbytes
    for offset in range(0, stop, _POPULATED_BYTES):
        size = min(_POPULATED_BYTES, stop - offset)
        address, length = ctypes.c_void_p(start + offset), ctypes.c_size_t(size)
        if _LIBC.madvise(address, length, _MADV_POPULATE_WRITE):
            return  # an older kernel: the first copies are slower


def write_owner(fd: int) -> None:
    """This process owns the file from now on."""
    os.pwrite(fd, _own_mark(), HEAD.size)


def _own_mark() -> bytes:
    return OWNER.pack(os.getpid(), process_start(os.getpid()))


def _allocate(fd: int, num_bytes: int, path: Path) -> None:
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError as error:
        raise HoldfastError(
            f"{path} needs {num_bytes} bytes of shared memory: {error.strerror}; lower the "
            f"snapshot's share of host memory, or enlarge {path.parent}"
        ) from None


def read_layout(fd: int) -> ArenaLayout:
    head = os.pread(fd, HEAD.size, 0)
    if len(head) < HEAD.size or not head.startswith(_MAGIC):
        raise HoldfastError(f"descriptor {fd} is no arena: it begins with {head[:8]!r}")
    _, form, num_text, digest, num_bytes = HEAD.unpack(head)
    if form != _FORMAT:
        raise HoldfastError(f"the arena has format {form}, this program reads {_FORMAT}")
    actual = os.fstat(fd).st_size
    if actual != num_bytes:
        raise HoldfastError(f"the arena has {actual} bytes, its head says {num_bytes}")
    text = os.pread(fd, num_text, TEXT_AT)
    if xxhash.xxh3_64_intdigest(text) != digest:
        raise HoldfastError("the layout of the arena is damaged: its checksum does not fit")
    try:
        return msgspec.json.decode(text, type=ArenaLayout)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"the layout of the arena is damaged: {error}") from None
