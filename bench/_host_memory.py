"""The two processes of a restore between hosts, each started in a host of its own.

keep    fills arenas as a worker does, writes the same version as a checkpoint, and then gives
        out its memory as an agent does
load    fills tensors with all of it, as a worker does that was started again: from the memory
        of the other host, from the checkpoint with its pages evicted, and with them cached, and
        from a plain DCP directory by plain torch.distributed.checkpoint, evicted (DCP). Beside
        it, what the hardware allows: as many bytes through a plain socket between the two hosts
        (link), and the files of the checkpoint read, evicted, and nothing more (files)
"""

import asyncio
import json
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from _common import interleave
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.plan import Plan
from holdfast.plan.units import Box
from holdfast.runtime.agent.peer_service import PeerService
from holdfast.runtime.wire.host_messages import Peer, PeerAccess
from holdfast.runtime.worker.group_store import PeerDirectory
from holdfast.runtime.worker.remote_memory import RemoteMemories
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.disk.persist import write_checkpoint
from holdfast.snapshot.load.catalog import PEER, Catalog
from holdfast.snapshot.load.job_state import load_checkpoint, load_snapshot
from holdfast.snapshot.manifest import Holding
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.memory.owners import arena_name
from holdfast.snapshot.memory.sources import NodeMemory
from holdfast.snapshot.share import plan_shares
from load import (
    SHAPE,
    VERSION,
    State,
    disk_loader,
    evict_pages,
    fill,
    random_state,
    tree_of,
)

JOB = "hostsbench"
KEEPER = "n0"
PLAIN = "plain"
"""The folder of the DCP directory."""
SMALL = LlamaShape(dim=768, num_layers=4, num_heads=12, num_kv_heads=4, hidden=2048, vocab=8192)
"""A third of a gigabyte."""


class Meeting(msgspec.Struct):
    """What the one process tells the other, in a file that only root reads."""

    peer: Peer
    secret: str
    bare_port: int
    """A process that connects there is sent as many bytes as the state has."""


def plan_of(quick: bool) -> Plan:
    """One worker holds everything: the most that one host can have to give to one other."""
    return regular_plan(llama_units(SMALL if quick else SHAPE), micro_batches=1)


async def keep(shared: Path, address: str, quick: bool) -> None:
    plan = plan_of(quick)
    state = random_state(plan)
    arenas = []
    for layout in plan_shares(plan).layouts:
        arenas.append(Arena.create(arena_name(node_job(JOB, KEEPER), layout), layout))
        fill(arenas[-1], state)
    memory = NodeMemory(KEEPER, arenas)
    write_checkpoint(shared, Catalog(Holding(memory.manifests()), [memory], KEEPER), {"step": 100})
    dcp_save(tree_of(state), checkpoint_id=shared / PLAIN, no_dist=True)
    secret = os.urandom(16).hex()
    service = PeerService(secret, lambda: memory)
    peer = await service.start(address)
    num_bytes = sum(value.numel() * value.element_size() for value in state.values())
    meeting = Meeting(peer, secret, serve_bare(address, np.ones(num_bytes, np.uint8).data))
    partial = shared / "meeting.part"
    partial.touch(mode=0o600)
    partial.write_bytes(msgspec.json.encode(meeting))
    partial.rename(shared / "meeting")
    await asyncio.Event().wait()


def serve_bare(address: str, data: memoryview) -> int:
    """The port of a thread that sends these bytes and nothing else."""
    server = socket.create_server((address, 0))

    def run() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)

    threading.Thread(target=run, daemon=True).start()
    return int(server.getsockname()[1])


def receive_bare(host: str, port: int, into: memoryview) -> None:
    with socket.create_connection((host, port)) as connection:
        done = 0
        while done < into.nbytes:
            done += (count := connection.recv_into(into[done:]))
            if not count:
                raise SystemExit(f"{done} of {into.nbytes} bytes over the plain socket")


def read_bare(folder: Path, into: memoryview) -> None:
    done = 0
    for path in sorted(folder.glob("*.distcp")):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(into[done:]):
                done += count
    if done < 0.9 * into.nbytes:
        raise SystemExit(f"the files of {folder} have {done} bytes, the state {into.nbytes}")


class Piece:
    """(StateSlice) A whole tensor."""

    def __init__(self, tensor: str, box: Box, parts: dict[str, torch.Tensor]) -> None:
        self.tensor, self.box, self._parts = tensor, box, parts

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._parts)

    def part(self, kind: str, box: Box) -> torch.Tensor:
        return self._parts[kind][tuple(slice(low, high) for low, high in box)]


def pieces_of(targets: State) -> dict[str, Piece]:
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for (tensor, kind), target in targets.items():
        parts.setdefault(tensor, {})[kind] = target
    return {
        tensor: Piece(tensor, tuple((0, size) for size in next(iter(own.values())).shape), own)
        for tensor, own in parts.items()
    }


def loaders(shared: Path, targets: State, num_bytes: int) -> dict[str, Callable[[], object]]:
    pieces = pieces_of(targets)
    meeting = msgspec.json.decode((shared / "meeting").read_bytes(), type=Meeting)
    access = PeerAccess(node="n1", secret=meeting.secret, peers={KEEPER: meeting.peer})

    def memory() -> None:
        others = RemoteMemories(PeerDirectory(access))
        found = load_snapshot(pieces, VERSION, job=JOB, node="n1", others=others)
        if list(found.bytes_by_origin) != [PEER]:
            raise SystemExit(f"not from the other host: {found.bytes_by_origin}")

    def disk() -> None:
        evict_pages(shared / "step-100")
        cached()

    def cached() -> None:
        load_checkpoint(pieces, shared, VERSION.step)

    room = np.ones(num_bytes + 2**24, np.uint8).data
    port = meeting.bare_port

    def link() -> None:
        receive_bare(meeting.peer.host, port, room[:num_bytes])

    def files() -> None:
        evict_pages(shared / "step-100")
        read_bare(shared / "step-100", room)

    dcp = disk_loader(shared / PLAIN, targets, evict=True)
    ours = {"memory": memory, "disk": disk, "cached": cached}
    return {**ours, "DCP": dcp, "link": link, "files": files}


def load(shared: Path, rounds: int, quick: bool) -> None:
    state = random_state(plan_of(quick))
    targets = {key: torch.zeros_like(value) for key, value in state.items()}
    num_bytes = sum(value.numel() * value.element_size() for value in state.values())
    all_loaders = loaders(shared, targets, num_bytes)
    for name in ("memory", "disk", "cached", "DCP"):
        for target in targets.values():
            target.fill_(torch.nan)
        all_loaders[name]()
        for key, value in state.items():
            if not torch.equal(targets[key], value):
                raise SystemExit(f"{name}: {key} is not what was saved")
    seconds = interleave(all_loaders, rounds, warmup=0)
    (shared / "loaded.json").write_text(json.dumps({"bytes": num_bytes, "seconds": seconds}))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    what, folder, argument, size = sys.argv[1:]
    if what == "keep":
        asyncio.run(keep(Path(folder), argument, size == "quick"))
    else:
        load(Path(folder), int(argument), size == "quick")
