"""The copier: moves one version of a worker's state into its arena while the worker waits.

Theory of operation. A thread of idle priority stands behind a gate. The training thread opens the
gate when it begins to wait for another and closes it when it goes on: two plain stores, no lock.
The thread copies chunk after chunk while the gate is open, and takes the checksum of each right
behind it, while the bytes are still in the cache. A chunk under way when the gate closes is not
broken off; since the thread has idle priority, the training thread is not kept from its core.
(Looking whether a message has arrived between two chunks would be simpler, but gloo cannot tell.)

State may be changed only by the optimizer, and before it does, `finish` must be called: what is
left is then copied by the caller itself, and counted as outside of gaps. So a version is whole or
it is given up; a torn one cannot be sealed. It is given up only if it is not known by then which
version the others have, so that the one in its slot may still be needed (see `others`).

On a device, chunks are copied on a stream of their own, a few handed over at a time; `finish` hands
over the rest at once and lets the training *stream* wait, not the thread. Checksums are then taken
from the host copy by a few threads of idle priority, and the version is sealed when they are done.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from queue import SimpleQueue

import msgspec
import torch
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.snapshot.chunks import Chunk, cut_chunks
from holdfast.snapshot.copying.device_mover import DeviceMover
from holdfast.snapshot.copying.movers import CopyJob, HostMover, Mover
from holdfast.snapshot.copying.others import Alone, Others
from holdfast.snapshot.copying.priority import lower_thread, may_return, set_idle
from holdfast.snapshot.memory.arena import Arena, Version

HOST_CHUNK_BYTES = 2**20
"""About a tenth of a millisecond: as long as a copy may go on after its gap has ended."""

DEVICE_CHUNK_BYTES = 32 * 2**20
"""From 16 MB on copies from a device reach the full rate."""

SHALLOW, DEEP = 3, 10**6
"""Chunks handed to a device at once: few where messages want the bus after them; all of them where
none does, so that the bus never stands idle because a thread is late.
"""

BESIDE = 8
"""The same beside computations: enough for the full rate, and the thread that launches kernels is
not kept waiting while hundreds are handed over.
"""

_POLL_S = 0.0002
_DRAIN_S = 60.0
_RECENT = 10


def keys_of(chunks: Iterable[Chunk]) -> tuple[str, ...]:
    """The entries that they are of."""
    return tuple(dict.fromkeys(piece.key for chunk in chunks for piece in chunk.pieces))


class CopyReport(msgspec.Struct, frozen=True):
    """What became of one version."""

    version: Version
    sealed: bool
    bytes_in_gaps: int
    bytes_outside: int
    seconds_in_gaps: float
    seconds_outside: float
    span_s: float
    """From the first byte to the last, whatever came in between."""

    @property
    def share_in_gaps(self) -> float:
        total = self.bytes_in_gaps + self.bytes_outside
        return self.bytes_in_gaps / total if total else 1.0


class Copier:
    """One worker's copier. `begin`, `open`, `close` and `finish` belong to one thread."""

    def __init__(
        self,
        arena: Arena,
        device: torch.device | None = None,
        others: Others | None = None,
        *,
        chunk_bytes: int = 0,
        low_priority: bool = True,
    ) -> None:
        """`chunk_bytes` 0: by the kind of device."""
        on_device = device is not None and device.type == "cuda"
        chunk_bytes = chunk_bytes or (DEVICE_CHUNK_BYTES if on_device else HOST_CHUNK_BYTES)
        self._arena, self._others = arena, others or Alone()
        self.chunks: tuple[Chunk, ...] = cut_chunks(arena.layout, chunk_bytes)
        self._keys = keys_of(self.chunks)
        if on_device and any(not p.ends for chunk in self.chunks for p in chunk.pieces):
            raise HoldfastError(
                f"chunks of {chunk_bytes} bytes are smaller than what one checksum covers, "
                f"{arena.layout.chunk_bytes}; on a device they must not be"
            )
        self.reports: deque[CopyReport] = deque(maxlen=1000)
        self.idle_since_s = 0.0
        """When the last version was done, by `time.perf_counter`."""
        self._mover: Mover = HostMover(time.perf_counter)
        if on_device and device is not None:
            self._mover = DeviceMover(device, arena, chunk_bytes)
        # From a device the thread only hands over; the less time it needs for that, the better.
        self._low_priority = low_priority and not on_device and may_return()
        self._jobs: deque[CopyJob] = deque()
        self._is_open = False
        self._is_stopped = False
        self._error: BaseException | None = None
        self._turn = threading.Lock()
        """Held while a chunk is copied, and by the thread that looks at the jobs."""
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread_id = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="snapshot copier")
        self._thread.start()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the chunks, for placing them."""
        return tuple(chunk.num_bytes for chunk in self.chunks)

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    @property
    def rate(self) -> float:
        """Bytes per second of copying, checksums included, over the last versions; 0: unknown."""
        recent = list(self.reports)[-_RECENT:]
        seconds = sum(report.seconds_in_gaps + report.seconds_outside for report in recent)
        copied = sum(report.bytes_in_gaps + report.bytes_outside for report in recent)
        return copied / seconds if seconds > 0 else 0.0

    # What the training thread calls.

    def begin(
        self,
        version: Version,
        sources: Mapping[str, Tensor],
        *,
        chunks: tuple[Chunk, ...] = (),
    ) -> None:
        """State is `version` from now on until `finish`. `sources` has the live tensor of every
        entry. `chunks`: only these, instead of all.
        """
        self._raise_error()
        keys = keys_of(chunks) if chunks else self._keys
        missing = next((key for key in keys if key not in sources), None)
        if missing is not None:
            raise HoldfastError(f"the entry {missing!r} has no source to be copied from")
        job = CopyJob(version, chunks or self.chunks, dict(sources))
        self._mover.prepare(job)
        self._jobs.append(job)
        if self._is_open:
            self._wake.put(None)

    def open(self, *, ahead: int = SHALLOW) -> None:
        """The training thread begins to wait, or does not mind copies beside it."""
        self._mover.ahead = ahead
        self._is_open = True
        if self._jobs:
            self._wake.put(None)

    def close(self) -> None:
        """It goes on."""
        self._is_open = False

    def finish(self) -> None:
        """State is about to change: what must be copied before is copied now."""
        self._is_open = False
        if self._jobs:
            # Also where every chunk has been taken: the last one may still be under way.
            self._take_turn()
            try:
                self._copy_rest()
                self._mover.hold_back_update()
            finally:
                self._turn.release()
            self._wake.put(None)
        self._raise_error()

    def held_s(self) -> float:
        """How long the training stream has waited for copies since the last call, as far as it is
        known: what `finish` costs beyond its own time.
        """
        return self._mover.held_s()

    def _copy_rest(self) -> None:
        while True:
            self._retire()
            job = next((job for job in self._jobs if not job.is_copied), None)
            if job is None:
                return
            if job is not self._jobs[0]:
                time.sleep(_POLL_S)  # the one before it still waits for its last checksums
            elif not self._step(in_gap=False):
                # The others have not answered yet: what this would overwrite may be needed.
                job.is_late = True

    def abandon(self) -> None:
        """Drop what is under way: the step was broken off, or the plan changes."""
        self._is_open = False
        self._take_turn()
        try:
            for job in self._jobs:
                job.is_late = True
            self._retire()
        finally:
            self._turn.release()

    def stop(self) -> None:
        """Drop what is under way and end the thread."""
        self.abandon()
        self._is_stopped = True
        if self._low_priority:  # it may never be scheduled, and training waits for its end
            set_idle(self._thread_id, False)
        self._wake.put(None)
        self._thread.join()
        self._mover.close()

    def drain(self) -> None:
        """Wait until what has been copied is sealed too. (Only a device needs that.)"""
        deadline = time.monotonic() + _DRAIN_S
        while self._error is None and any(job.is_copied for job in list(self._jobs)):
            if time.monotonic() > deadline:
                raise HoldfastError(f"{self._jobs[0].version} was not sealed in {_DRAIN_S:g} s")
            time.sleep(_POLL_S)
        self._raise_error()

    def _take_turn(self) -> None:
        if self._turn.acquire(blocking=False):
            return
        # A chunk is being copied by a thread that may never be scheduled: it has to hurry now.
        if self._low_priority:
            set_idle(self._thread_id, False)
        self._turn.acquire()
        if self._low_priority:
            set_idle(self._thread_id, True)

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # The copier's own thread.

    def _run(self) -> None:
        self._thread_id = threading.get_native_id()
        if self._low_priority:
            lower_thread()
        while not self._is_stopped:
            self._wake.get()
            try:
                self._work()
            except BaseException as error:
                self._error = error
                self._arena.abandon()
                self._jobs.clear()

    def _work(self) -> None:
        while self._jobs and not self._is_stopped:
            with self._turn:
                self._retire()
                moved = self._is_open and self._step(in_gap=True)
                unsealed = bool(self._jobs) and self._jobs[0].is_copied
            if moved:
                continue
            if not unsealed and not self._is_open:
                return
            time.sleep(_POLL_S)  # for the device, or for the others' answer

    def _step(self, *, in_gap: bool) -> bool:
        """One chunk of the oldest job. False: there is none that could be copied now."""
        job = self._jobs[0] if self._jobs else None
        if job is None or job.is_copied or not job.open(self._arena, self._others):
            return False
        self._mover.move(job, (lambda: self._is_open) if in_gap else None)
        self._retire()
        return True

    def _retire(self) -> None:
        """Seal what is complete and drop what came too late."""
        while self._jobs and (self._jobs[0].is_late or self._mover.is_complete(self._jobs[0])):
            job = self._jobs[0]
            if job.is_late:
                self._arena.abandon()
            elif job.slot is not None:
                job.slot.seal(job.checksums)
            self.reports.append(
                CopyReport(
                    version=job.version,
                    sealed=not job.is_late,
                    bytes_in_gaps=job.bytes_in_gaps,
                    bytes_outside=job.bytes_outside,
                    seconds_in_gaps=job.seconds_in_gaps,
                    seconds_outside=job.seconds_outside,
                    span_s=job.span_s,
                )
            )
            self._others.announce(job.version, sealed=not job.is_late)
            self._jobs.popleft()
            self.idle_since_s = time.perf_counter()
