"""What the launcher and the processes it starts say to each other, over the socket of their start.

The launcher outlives all of them and writes the beginning and the end of a run. The end of this
socket is the end of the launcher, and of the process.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.control.message import Message
from holdfast.control.worker_reports import Planned
from holdfast.observe.run_clock import RunClock
from holdfast.runtime.agent.agent import AgentSpec
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.wire.frames import Reader, Unpacker, pack
from holdfast.runtime.wire.messages import Assignment


class CoordinatorSpec(msgspec.Struct, frozen=True, kw_only=True, tag="coordinator"):
    """Everything a coordinator needs to know."""

    run_dir: str
    secret: str
    config: JobConfig
    plans: tuple[Planned, ...]
    backend: str
    memory: str = ""
    """The job's name in shared memory; empty = there are no snapshots."""
    first_step: int = 0
    run: int = 1
    """Counts the runs in this directory."""
    clock: RunClock
    assignment: Assignment | None = None
    """Where hosts join the job: of any worker, but for its name and what only its host knows."""
    after_term: int = 0
    """There, too: the term that the coordinator's own follows."""
    term: int = 0
    """Its own, if it was taken by the process that starts it."""


class StartOf(Message, frozen=True, kw_only=True):
    """The first message to a process: what it is."""

    spec: AgentSpec | CoordinatorSpec


class StopRequest(Message, frozen=True, kw_only=True):
    """The launcher got a signal."""

    signal: str


class CheckpointRequest(Message, frozen=True, kw_only=True):
    """The launcher got a signal that asks for a checkpoint."""

    signal: str


class NodeEnded(Message, frozen=True, kw_only=True):
    """The launcher saw an agent end."""

    node: str
    agent: str
    """Which: another may be there by the time this is read."""
    how: str
    will_return: bool = False
    """It starts another."""


class Wrote(Message, frozen=True, kw_only=True):
    """Journal and metrics have these sizes now."""

    journal: int
    metrics: int


class CannotWrite(Message, frozen=True, kw_only=True):
    """The disk takes nothing; what is told to the journal waits."""

    reason: str


class Ending(Message, frozen=True, kw_only=True):
    """The job is over."""

    outcome: str
    """finished, stopped or failed"""
    reason: str
    is_state_lost: bool = False
    """Nothing that is in memory can be gone on from."""
    staging_bytes: int = 0
    final_bytes: int = 0
    profile: str = ""
    """The text of profile.json; empty = nothing was measured."""
    unwritten: int = 0
    """Lines of journal and metrics, and files, that the disk did not take."""


START: Reader[StartOf] = Reader(StartOf)
FromLauncher = StopRequest | CheckpointRequest | NodeEnded
FROM_LAUNCHER: Reader[FromLauncher] = Reader(FromLauncher)
BY_LAUNCHER: Reader[Wrote | CannotWrite | Ending] = Reader(Wrote | CannotWrite | Ending)


class LauncherLink(asyncio.Protocol):
    """The coordinator's end."""

    def __init__(self, on_message: Callable[[Any], object], on_gone: Callable[[], object]) -> None:
        self._on_message, self._on_gone = on_message, on_gone
        self._unpacker = Unpacker(FROM_LAUNCHER)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._unpacker.feed(data):
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_gone()

    def send(self, message: Message) -> None:
        if self._transport is not None:
            self._transport.write(pack(message))

    def close(self) -> None:
        """After what was sent has left."""
        if self._transport is not None:
            self._transport.close()
