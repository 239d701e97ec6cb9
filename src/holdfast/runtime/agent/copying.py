"""Copies of what only one node holds, made by a process of each node that keeps some.

The agent passes on which version is to be copied; all holders keep that version meanwhile. The
process is forked from the fork server, takes only the time that nobody else wants, and reads the
memory of the other nodes on this machine. Every byte is verified against what its owner sealed: a
version that is overwritten after all is given up, and the copy before it is as it was.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.workers import node_of
from holdfast.runtime.wire.frames import Channel
from holdfast.runtime.wire.messages import ToWorker
from holdfast.runtime.wire.snapshot_messages import Copied, Copy, CopySpec
from holdfast.snapshot.arena import SHARED_MEMORY, Arena
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.copies import CopyFailed, pull_copy
from holdfast.snapshot.layout import Version
from holdfast.snapshot.owners import arena_name, files_of
from holdfast.snapshot.sources import NodeMemory


class CopyKeeper:
    def __init__(self, job: str, node: str, folder: Path = SHARED_MEMORY) -> None:
        self._job, self._node, self._folder = job, node, folder

    def copy(self, version: Version, plan: str, before: Version | None = None) -> None:
        """All that this node keeps for others; CopyFailed or HoldfastError if it cannot be had."""
        for path in files_of(node_job(self._job, self._node), self._folder):
            # Not mapped for longer: memory that the agent gives back shall be free.
            with _opened(path) as copy:
                if copy.layout.is_copy and copy.layout.plan == plan:
                    self._pull(copy, version, before)

    def _pull(self, copy: Arena, version: Version, before: Version | None) -> None:
        copy.abandon()  # whoever wrote here before is gone
        if copy.slot(version) is None:
            node = node_of(copy.layout.worker)
            layout = msgspec.structs.replace(copy.layout, node=node)
            with _opened(self._folder / arena_name(node_job(self._job, node), layout)) as own:
                pull_copy(copy, NodeMemory(node, [own]), version, before)


@contextmanager
def _opened(path: Path) -> Iterator[Arena]:
    try:
        arena = Arena.open(path)
    except OSError as error:
        raise CopyFailed(f"{path.name}: {error.strerror}") from None
    try:
        yield arena
    finally:
        arena.close()


def run_copying(spec: CopySpec, channel: Channel[ToWorker]) -> int:
    """Such a process's whole life, after its first message."""
    os.nice(19)
    keeper = CopyKeeper(spec.memory, spec.node)
    while isinstance(message := channel.receive(), Copy):
        error = ""
        try:
            keeper.copy(message.version, message.plan, message.before)
        except (CopyFailed, HoldfastError, OSError) as failure:
            error = str(failure)
        channel.send(Copied(version=message.version, error=error))
    return 0
