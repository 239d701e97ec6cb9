"""A node's workers as its agent has them: processes with a socket, a page and a last known state.

Writing never blocks: a worker that is stopped takes nothing, and its agent has others to serve.
What a worker said before it ended is read before its end is told.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.control.facts import ProgressPlace
from holdfast.control.message import Message
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.runtime.launch.fork_server import Forker
from holdfast.runtime.wire.frames import FROM_WORKER, Unpacker, WireError, pack
from holdfast.runtime.wire.messages import FromWorker
from holdfast.runtime.worker.progress_page import Progress, ProgressPage, make_page_file

SILENT_MS = 300
"""Beats come every 50 ms; without one for so long, the process is looked at."""
STILL_MS = 1000
"""In one action for so long: is it busy?"""
BUSY_SHARE = 0.2
"""Of a processor, since the look before."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PF_EXITING = 0x4
"""Of a process that runs no more code of its own."""


class WorkerProcess:
    """One incarnation, from its fork to its end."""

    def __init__(
        self,
        member: Member,
        forker: Forker,
        log: Path,
        on_message: Callable[["WorkerProcess", FromWorker], object],
        on_end: Callable[["WorkerProcess"], object] = lambda worker: None,
    ) -> None:
        """`on_end`: nothing more comes from it, and its end is near."""
        self.member, self._on_message, self._on_end = member, on_message, on_end
        self.state = WorkerState(member=member)
        self.pid = 0
        self.is_doomed = False
        self.last_words = ""
        self._unpacker = Unpacker(FROM_WORKER)
        self._unsent = bytearray()
        self._early: list[Message] | None = []
        """What waits for its assignment; None: it has that."""
        page_fd = make_page_file()
        self._page = ProgressPage(page_fd)
        self._beats, self._beat_ms = 0, 0
        self._looked_ms, self._cpu_ms, self._is_busy = 0, 0, False
        ours, theirs = socket.socketpair()
        try:
            self.ticket = forker.fork(theirs, log, page_fd)
        finally:
            theirs.close()
            os.close(page_fd)
        ours.setblocking(False)
        self._socket = ours
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self.read)

    @property
    def name(self) -> str:
        return self.member.name

    # Messages.

    def send(self, message: Message) -> None:
        if self._socket.fileno() < 0:
            return
        if not self._unsent:
            self._loop.add_writer(self._socket, self._write)
        self._unsent += pack(message)
        self._write()

    def assign(self, assignment: Message) -> None:
        """The first message that it gets."""
        early, self._early = self._early or [], None
        for message in (assignment, *early):
            self.send(message)

    def send_later(self, message: Message) -> None:
        """Not before its assignment: a process that has just been forked knows nothing else."""
        if self._early is None:
            self.send(message)
        else:
            self._early.append(message)

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:  # it has ended; how comes from the fork server
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent and self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)

    def read(self) -> None:
        """Everything that is there."""
        while self._socket.fileno() >= 0:
            try:
                data = self._socket.recv(2**18)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.hang_up()
                self._on_end(self)
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            for message in self._unpacker.feed(data):
                self._on_message(self, message)
        except WireError as error:
            self.last_words = f"sent something that is no message: {error}"
            self.kill()

    def hang_up(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    # The process.

    def forked(self, pid: int) -> None:
        self.pid = pid
        if self.is_doomed:
            self.kill()

    def kill(self) -> None:
        """At once, or as soon as it exists."""
        self.is_doomed = True
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def ended(self) -> None:
        """It is reaped: receive what it still sent."""
        self.read()
        self.give_back()
        self.pid = 0

    def give_back(self) -> None:
        self.hang_up()
        self._page.close()

    # Progress.

    def place(self, now_ms: int) -> ProgressPlace:
        """Where it is. The time without beats counts from when they were first missed."""
        progress: Progress = self._page.read()
        if progress.beats != self._beats or not self._beat_ms:
            self._beats, self._beat_ms = progress.beats, now_ms
        silent_ms = now_ms - self._beat_ms
        if silent_ms < SILENT_MS or not progress.beats:
            silent_ms = 0
        is_still = progress.step >= 0 and now_ms - progress.since_ms > STILL_MS
        look = read_process(self.pid) if silent_ms or is_still else None
        if look is not None and is_still:
            self._look(look, now_ms)
        return ProgressPlace(
            progress.step,
            progress.action,
            progress.since_ms,
            silent_ms,
            look is not None and bool(silent_ms) and look.state == "T",
            is_still and self._is_busy,
            self.member.incarnation,
        )

    def _look(self, look: "KernelView", now_ms: int) -> None:
        """Busy between two looks, half a second apart at least, or waiting for a processor now."""
        span = now_ms - self._looked_ms
        if span >= STILL_MS / 2:
            used = look.cpu_ms - self._cpu_ms
            self._is_busy = look.state == "R" or (span < 3 * STILL_MS and used > BUSY_SHARE * span)
            self._looked_ms, self._cpu_ms = now_ms, look.cpu_ms

    def at_version(self, version: int) -> None:
        self.state = msgspec.structs.replace(self.state, version=version)


class KernelView(msgspec.Struct, frozen=True):
    """A process as the kernel sees it."""

    state: str
    """R runs or could, S sleeps, D waits for a device, T is stopped by a signal."""
    cpu_ms: int
    """Used so far, by all its threads."""
    ends_with: int | None = None
    """Exit code, or minus the signal, of a process that ends or has ended; None: it runs."""


def read_process(pid: int) -> KernelView | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name before the state is in parentheses and may contain anything.
    fields = text.rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    ends_with = None
    if int(fields[6]) & _PF_EXITING:
        ends_with = os.waitstatus_to_exitcode(int(fields[49]))
    return KernelView(fields[0], ticks * 1000 // _TICKS_PER_S, ends_with)
