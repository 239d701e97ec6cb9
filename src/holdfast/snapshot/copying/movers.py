"""Moving bytes: one version on its way into a slot, from host memory."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from holdfast.snapshot.chunks import Chunk, ChunkPiece
from holdfast.snapshot.copying.others import Others
from holdfast.snapshot.layout import chunk_checksums
from holdfast.snapshot.memory.arena import Arena, ArenaSlot, Version
from holdfast.snapshot.parity import fold_in

Bytes = NDArray[np.uint8]

StillOpen = Callable[[], bool]
"""Does the training thread still wait? A copy it did not wait for is not inside the gap."""


class CopyJob:
    """One version in the making."""

    def __init__(
        self, version: Version, chunks: tuple[Chunk, ...], sources: dict[str, Tensor]
    ) -> None:
        self.version, self.chunks, self.sources = version, chunks, sources
        self.slot: ArenaSlot | None = None
        self.position = 0
        self.is_late = False
        """State changed before all was copied."""
        self.checksums: dict[str, list[int]] = {}
        self.span_s = 0.0
        """From the first byte to the last."""
        self.first: Any = None
        """When the first chunk began: a time, or (device) an event."""
        self.ready: Any = None
        """(device) The event after which state has this version."""
        self.pending: list[Future[None]] = []
        """(device) What is still done with chunks that have arrived."""
        self.bytes_in_gaps = self.bytes_outside = 0
        self.seconds_in_gaps = self.seconds_outside = 0.0

    @property
    def is_copied(self) -> bool:
        return self.position == len(self.chunks)

    def open(self, arena: Arena, others: Others) -> bool:
        """Has the job a slot? Asked again as long as it has none."""
        if self.slot is None and others.is_settled():
            self.slot = arena.begin(self.version, others.complete)
            layout = arena.layout
            self.checksums = {e.key: [0] * layout.num_chunks(e) for e in layout.checked}
        return self.slot is not None

    def take(self) -> Chunk:
        self.position += 1
        return self.chunks[self.position - 1]

    def close_row(self, row: str) -> None:
        """Everything has been folded into a parity row: its own checksums."""
        assert self.slot is not None
        data = self.slot.bytes(row)
        self.checksums[row] = chunk_checksums(data, self.slot.layout.chunk_bytes)

    def count(self, num_bytes: int, seconds: float, in_gap: bool) -> None:
        if in_gap:
            self.bytes_in_gaps += num_bytes
            self.seconds_in_gaps += seconds
        else:
            self.bytes_outside += num_bytes
            self.seconds_outside += seconds


class Mover(Protocol):
    ahead: int
    """Chunks under way at once, where they can be."""

    def prepare(self, job: CopyJob) -> None:
        """State has the job's version from here on."""

    def move(self, job: CopyJob, still_open: StillOpen | None) -> None:
        """Copy the next chunk. None: outside of gaps, as fast as possible."""

    def is_complete(self, job: CopyJob) -> bool:
        """Has everything arrived, with its checksums?"""

    def hold_back_update(self) -> None:
        """What comes next may change state; copies under way must still see the old one."""

    def held_s(self) -> float:
        """How long updates were held back by that since the last call, as far as it is known; the
        time that the thread itself has waited is not in it.
        """

    def close(self) -> None: ...


def flat_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor: of a live one, not a copy, if they lie one behind the other."""
    return tensor.detach().reshape(-1).view(torch.uint8)


class HostMover:
    """From host memory. The checksum follows each piece while it is in the cache."""

    ahead = 1

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sources: dict[str, tuple[Tensor, Bytes | None]] = {}
        """Live tensors and their bytes; None where they do not lie one behind the other."""
        self._packed: tuple[str, Bytes] | None = None
        self._targets: dict[str, Bytes] = {}
        self._slot: ArenaSlot | None = None
        self._running: dict[str, Any] = {}
        """Checksums that are not at their end yet, by entry."""

    def prepare(self, job: CopyJob) -> None:
        """Views are made here, not in a gap; state that moved in memory gets a new one."""
        self._packed = None
        for key, tensor in job.sources.items():
            known = self._sources.get(key)
            if known is None or known[0].data_ptr() != tensor.data_ptr():
                flat = flat_bytes(tensor).numpy() if tensor.is_contiguous() else None
                self._sources[key] = (tensor, flat)

    def move(self, job: CopyJob, still_open: StillOpen | None) -> None:
        begin = self._clock()
        job.first = begin if job.first is None else job.first
        chunk = job.take()
        self._aim_at(job.slot)
        for piece in chunk.pieces:
            source = self._source(piece)
            if piece.fold is None:
                target = self._targets[piece.key][piece.start : piece.stop]
                np.copyto(target, source)
                source = target
            else:
                row = self._targets[piece.fold.row]
                fold_in(row.data, piece.fold, source.data, piece.start)
            self._check(job, piece, source)
        inside, end = still_open is not None and still_open(), self._clock()
        job.count(chunk.num_bytes, end - begin, inside)
        job.span_s = end - job.first

    def _source(self, piece: ChunkPiece) -> Bytes:
        tensor, flat = self._sources[piece.key]
        if flat is None:
            if self._packed is None or self._packed[0] != piece.key:
                self._packed = (piece.key, flat_bytes(tensor).numpy())
            flat = self._packed[1]
        return flat[piece.start : piece.stop]

    def _aim_at(self, slot: ArenaSlot | None) -> None:
        assert slot is not None
        if slot is not self._slot:
            self._slot, self._running = slot, {}
            self._targets = {
                entry.key: np.frombuffer(slot.bytes(entry.key), dtype=np.uint8)
                for entry in slot.layout.entries
            }

    def _check(self, job: CopyJob, piece: ChunkPiece, data: Bytes) -> None:
        running = self._running.get(piece.key)
        if running is None and piece.ends:
            job.checksums[piece.key][piece.number] = xxhash.xxh3_64_intdigest(data.data)
        else:
            if running is None:
                running = self._running[piece.key] = xxhash.xxh3_64()
            running.update(data.data)
            if piece.ends:
                job.checksums[piece.key][piece.number] = running.intdigest()
                del self._running[piece.key]
        if piece.closes:
            job.close_row(piece.closes)

    def is_complete(self, job: CopyJob) -> bool:
        return job.is_copied

    def hold_back_update(self) -> None:
        """Nothing to wait for: copies are over when `move` returns."""

    def held_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._sources.clear()
        self._targets.clear()
        self._slot = self._packed = None
