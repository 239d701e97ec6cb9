"""A plain training loop, FSDP2 or DDP on a few ranks, with a Snapshotter: it runs in worker
processes of the tests, and dies there.
"""

import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from holdfast import Snapshotter
from holdfast.errors import HoldfastError

BATCH = 12
PHASES = ("forward", "backward", "update", "snapshot")


@dataclass
class LoopRun:
    """One start of the loop."""

    folder: Path
    port: int
    nodes: tuple[str, ...]
    """Of every rank."""
    num_steps: int
    die: tuple[int, int, str] | None = None
    """(rank, step, phase) of a kill; the others end when they notice."""
    is_patient: bool = False
    """The kill waits until peers have a copy of a version of this run."""
    min_copied: int = 0
    """With that: of this version, or a later one."""
    fresh: bool = False
    is_sharded: bool = True
    """FSDP2; else DDP."""
    options: dict = field(default_factory=dict)


@dataclass
class Ended:
    """What a rank has to say that was not killed."""

    first: int = -1
    losses: dict[int, float] = field(default_factory=dict)
    origins: tuple[str, ...] = ()
    error: str = ""


class Position:
    """How many samples were seen: every rank of any number of them says the same."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict) -> None:
        self.seen = state_dict["seen"]


def make_model(is_sharded: bool) -> nn.Module:
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(14, 22), nn.GELU(), nn.Linear(22, 14)) for _ in range(2)]
    model = nn.Sequential(*blocks, nn.Linear(14, 5)).double()
    if not is_sharded:
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def batch(seen: int, rank: int, size: int) -> tuple[Tensor, Tensor]:
    """This rank's part of the samples from number `seen` on."""
    numbers = torch.Generator().manual_seed(seen)
    x = torch.randn(BATCH, 14, generator=numbers, dtype=torch.float64)
    part = slice(BATCH * rank // size, BATCH * (rank + 1) // size)
    return x[part], x[part, :5].argmax(dim=1)


def run_loop(run: LoopRun, rank: int) -> Ended:
    """One rank. It kills itself when its time has come, or when others are gone."""
    torch.set_num_threads(1)
    size = len(run.nodes)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{run.port}", rank=rank, world_size=size
    )
    try:
        ended = _train(run, rank, size)
    except HoldfastError as error:
        ended = Ended(error=str(error))
    except RuntimeError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    dist.destroy_process_group()
    return ended


def _train(run: LoopRun, rank: int, size: int) -> Ended:
    model, position = make_model(run.is_sharded), Position()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    objects = {"model": model, "optimizer": optimizer, "position": position}
    snapshotter = Snapshotter(
        objects, run.folder / "memory", node=run.nodes[rank], **{"every": 1, **run.options}
    )
    first = snapshotter.load(allow_fresh=run.fresh)
    report = snapshotter.load_report
    ended = Ended(first, origins=tuple(report.bytes_by_origin()) if report else ())

    def maybe_die(step: int, phase: str) -> None:
        if run.die is None or (rank, phase) != (run.die[0], run.die[2]) or step < run.die[1]:
            return
        protection = snapshotter._protection
        copied = protection.copied if protection is not None else None
        if not run.is_patient or (copied is not None and copied.step >= run.min_copied):
            os.kill(os.getpid(), signal.SIGKILL)

    for step in range(first, run.num_steps):
        assert position.seen == BATCH * step
        x, y = batch(position.seen, rank, size)
        maybe_die(step, "forward")
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum") * size / BATCH
        maybe_die(step, "backward")
        loss.backward()
        position.seen += BATCH
        maybe_die(step, "update")
        optimizer.step()
        optimizer.zero_grad()
        maybe_die(step, "snapshot")
        snapshotter.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        ended.losses[step] = total.item() / size
        with (run.folder / f"losses-{rank}").open("a") as file:
            file.write(f"{step} {ended.losses[step]!r}\n")
    snapshotter.close()
    return ended


def damage_memory(folder: Path, chance: random.Random, node: str = "") -> str:
    """One byte somewhere in a file of the memory (of a node); its name."""
    files = sorted(path for path in folder.glob(f"memory.{node or '*'}.*"))
    path = chance.choice(files)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size * 3 // 4 + chance.randrange(64))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))
    return path.name
