"""Sidecars: processes of a node that do not train. One writes checkpoints for the whole job, one
copies what this node keeps for workers of other nodes, one completes light snapshots.

The agent forks them from the fork server, passes the coordinator's messages on, and starts another
one when one ends.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from holdfast.control.snapshots.messages import Copied, Copy, Persist, Persisted
from holdfast.engine.optimizer import advance_moments
from holdfast.errors import HoldfastError
from holdfast.runtime.wire.frames import Channel
from holdfast.runtime.wire.host_messages import Peers
from holdfast.runtime.wire.messages import ToWorker
from holdfast.runtime.wire.snapshot_messages import (
    CompleteLight,
    CopySpec,
    LightCompleted,
    LightSpec,
    PersistSpec,
)
from holdfast.runtime.worker.group_store import PeerDirectory
from holdfast.runtime.worker.remote_memory import RemoteMemories
from holdfast.snapshot.disk.job_writer import JobPersister
from holdfast.snapshot.disk.persister import Attempt, Due
from holdfast.snapshot.memory.light_versions import LightVersions
from holdfast.snapshot.memory.peer_copies import CopyFailed, CopyKeeper


def run_copying(spec: CopySpec, channel: Channel[ToWorker]) -> int:
    """Such a process's whole life, after its first message."""
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    peers = PeerDirectory(spec.access) if spec.access is not None else None
    others = RemoteMemories(peers) if peers is not None else None
    keeper = CopyKeeper(spec.memory, spec.node, Path(spec.folder), others)
    while isinstance(message := channel.receive(), Copy | Peers):
        if isinstance(message, Peers):
            _learn(peers, message)
            continue
        error = ""
        try:
            keeper.copy(message.version, message.plan, message.before)
        except (CopyFailed, HoldfastError, OSError) as failure:
            error = str(failure)
        channel.send(Copied(version=message.version, error=error))
    return 0


def run_completing(spec: LightSpec, channel: Channel[ToWorker]) -> int:
    """Such a process's whole life, after its first message."""
    torch.set_num_threads(1)
    versions = LightVersions(partial(advance_moments, spec.optimizer))
    while isinstance(message := channel.receive(), CompleteLight):
        error, begin = "", time.perf_counter()
        try:
            paths = Path(message.path), Path(message.staging)
            versions.complete(message.worker, *paths, message.version, message.before)
        except (HoldfastError, OSError) as failure:
            error = str(failure)
        seconds = time.perf_counter() - begin
        answer = LightCompleted(
            worker=message.worker, version=message.version, seconds=seconds, error=error
        )
        channel.send(answer)
    versions.close()
    return 0


def run_persisting(spec: PersistSpec, channel: Channel[ToWorker]) -> int:
    """Such a process's whole life, after its first message. Only what writes is of low priority: a
    version has to be held before training overwrites it.
    """

    def report(attempt: Attempt) -> None:
        channel.send(
            Persisted(
                version=attempt.version,
                reason=attempt.reason,
                seconds=attempt.seconds,
                path=attempt.path,
                error=attempt.error,
            )
        )

    peers = PeerDirectory(spec.access) if spec.access is not None else None

    def start() -> JobPersister:
        os.setpriority(os.PRIO_PROCESS, 0, 19)  # this thread, and those it starts
        return JobPersister(
            spec.memory,
            Path(spec.checkpoints),
            Due(spec.every_steps, spec.every_s),
            report,
            keep_latest_k=spec.keep_latest_k,
            first_step=spec.first_step,
            folder=Path(spec.folder),
            others=RemoteMemories(peers) if peers is not None else None,
        )

    with ThreadPoolExecutor(1) as starter:
        persisting = starter.submit(start).result()
    while isinstance(message := channel.receive(), Persist | Peers):
        if isinstance(message, Peers):
            _learn(peers, message)
        else:
            persisting.offer(message.version, message.demand, message.every_s)
    persisting.close()
    return 0


def _learn(peers: PeerDirectory | None, message: Peers) -> None:
    if peers is not None:
        peers.learn(message.addresses)
