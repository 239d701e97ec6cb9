"""Moving bytes from a CUDA device.

Copies run on a stream of their own, into memory that is registered with CUDA, so that they need
neither the processor nor the training stream. What has arrived is checked by threads of idle
priority. What is to be folded into a parity row arrives in a few pinned buffers and is added to
its row by one more thread, in order: two threads on one row would overwrite each other.
"""

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.snapshot.chunks import Chunk, ChunkPiece
from holdfast.snapshot.copying.checksum_pool import ChecksumPool
from holdfast.snapshot.copying.movers import CopyJob, StillOpen, flat_bytes
from holdfast.snapshot.copying.priority import lower_thread
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.parity import fold_in

_NUM_BUFFERS = 4
"""For what is folded into parity rows."""


class _Flight:
    """A chunk on its way."""

    def __init__(self, job: CopyJob, chunk: Chunk, in_gap: bool) -> None:
        self.job, self.chunk, self.in_gap = job, chunk, in_gap
        self.begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.buffer: Tensor | None = None


class DeviceMover:
    ahead = 2

    def __init__(self, device: torch.device, arena: Arena, chunk_bytes: int) -> None:
        self._device, self._arena, self._chunk_bytes = device, arena, chunk_bytes
        self._runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._flights: deque[_Flight] = deque()
        self._last: Any = None
        self._hold: tuple[Any, float] | None = None
        """The copy that holds an update back, and since when."""
        self._held_s = 0.0
        self._checksums = ChecksumPool()
        self._folder = ThreadPoolExecutor(1, "parity", initializer=lower_thread)
        self._buffers: SimpleQueue[Tensor] = SimpleQueue()
        self._registered = 0

    def prepare(self, job: CopyJob) -> None:
        self._checksums.begin(sum(chunk.num_bytes for chunk in job.chunks))
        job.ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        job.ready.record(torch.cuda.current_stream(self._device))

    def _register(self) -> None:
        """Once, and late: it takes 0.1 s for every GiB, which no start has to wait for."""
        memory = np.frombuffer(self._arena.memory, dtype=np.uint8)
        address = int(memory.ctypes.data)
        error = self._runtime.cudaHostRegister(address, memory.nbytes, 0)
        if int(error) != 0:
            raise HoldfastError(
                f"{memory.nbytes} bytes cannot be registered with CUDA: error {int(error)} (only "
                f"shared memory can be)"
            )
        self._registered = address
        if self._arena.layout.rows:
            for _ in range(_NUM_BUFFERS):
                self._buffers.put(
                    torch.empty(self._chunk_bytes, dtype=torch.uint8, pin_memory=True)
                )

    def move(self, job: CopyJob, still_open: StillOpen | None) -> None:
        if not self._registered:
            self._register()
        flight = _Flight(job, job.take(), still_open is not None and still_open())
        if any(piece.fold is not None for piece in flight.chunk.pieces):
            flight.buffer = self._take_buffer()
        with torch.cuda.stream(self._stream):
            if job.ready is not None:
                self._stream.wait_event(job.ready)
                job.ready = None
            self._launch(flight)
        self._last = flight.end
        self._flights.append(flight)
        while still_open is not None and len(self._flights) >= self.ahead:
            self._land_first()

    def _launch(self, flight: _Flight) -> None:
        flight.begin.record()
        job, at = flight.job, 0
        job.first = flight.begin if job.first is None else job.first
        for piece in flight.chunk.pieces:
            source = flat_bytes(job.sources[piece.key])[piece.start : piece.stop]
            self._target(flight, piece, at).copy_(source, non_blocking=True)
            at += piece.num_bytes
        flight.end.record()

    def _target(self, flight: _Flight, piece: ChunkPiece, at: int) -> Tensor:
        if piece.fold is not None:
            assert flight.buffer is not None
            return flight.buffer[at : at + piece.num_bytes]
        assert flight.job.slot is not None
        return flight.job.slot.tensor(piece.key)[piece.start : piece.stop]

    def _take_buffer(self) -> Tensor:
        while self._buffers.empty() and self._flights:
            self._land_first()
        return self._buffers.get()

    def _land_first(self) -> None:
        self._flights[0].end.synchronize()
        self._land(self._flights.popleft())

    def _land(self, flight: _Flight) -> None:
        """On the host: count it, and have done what is done there."""
        job, chunk = flight.job, flight.chunk
        seconds = flight.begin.elapsed_time(flight.end) / 1000.0
        job.count(chunk.num_bytes, seconds, flight.in_gap)
        job.span_s = job.first.elapsed_time(flight.end) / 1000.0
        if self._hold is not None and flight.end is self._hold[0]:
            # By the clock: events on the training stream, around its wait, were seen to tell none.
            self._held_s += time.perf_counter() - self._hold[1]
            self._hold = None
        take = partial(_take_checksums, job, chunk)
        job.pending.append(self._checksums.submit(chunk.num_bytes, take))
        if flight.buffer is not None:
            job.pending.append(self._folder.submit(self._fold, job, chunk, flight.buffer))

    def _fold(self, job: CopyJob, chunk: Chunk, buffer: Tensor) -> None:
        try:
            assert job.slot is not None
            data, at = buffer.numpy().data, 0
            for piece in chunk.pieces:
                part = data[at : at + piece.num_bytes]
                at += piece.num_bytes
                if piece.fold is None or job.is_late:
                    continue
                fold_in(job.slot.bytes(piece.fold.row), piece.fold, part, piece.start)
                job.checksums[piece.key][piece.number] = xxhash.xxh3_64_intdigest(part)
                if piece.closes:
                    job.close_row(piece.closes)
        finally:
            self._buffers.put(buffer)

    def is_complete(self, job: CopyJob) -> bool:
        while self._flights and self._flights[0].end.query():
            self._land(self._flights.popleft())
        if not job.is_copied or any(flight.job is job for flight in self._flights):
            return False
        if not all(future.done() for future in job.pending):
            return False
        for future in job.pending:
            future.result()
        return True

    def hold_back_update(self) -> None:
        if self._last is not None:
            torch.cuda.current_stream(self._device).wait_event(self._last)
        self._hold = (self._last, time.perf_counter()) if self._flights else None

    def held_s(self) -> float:
        seconds, self._held_s = self._held_s, 0.0
        return seconds

    def close(self) -> None:
        self._stream.synchronize()
        while self._flights:
            self._land(self._flights.popleft())
        self._checksums.close()
        self._folder.shutdown()
        if self._registered:
            self._runtime.cudaHostUnregister(self._registered)
            self._registered = 0


def _take_checksums(job: CopyJob, chunk: Chunk) -> None:
    assert job.slot is not None
    for piece in chunk.pieces:
        if piece.fold is None:
            data = job.slot.bytes(piece.key)[piece.start : piece.stop]
            job.checksums[piece.key][piece.number] = xxhash.xxh3_64_intdigest(data)
