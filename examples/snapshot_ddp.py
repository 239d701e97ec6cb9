"""Snapshots in a DistributedDataParallel loop: kill it, start it again (without --fresh, on any
number of processes), and it goes on from memory.

    torchrun --nproc-per-node 2 examples/snapshot_ddp.py --steps 200 --fresh

The lines that belong to the snapshots are marked. All ranks hold the same parameters, so each saves
a share of them, and between nodes there is parity.
"""

import argparse
import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from holdfast import Snapshotter  # snapshots


class Data:
    """A position in the data is state like any other."""

    def __init__(self) -> None:
        self.seen = 0

    def next(self, rank: int) -> tuple[Tensor, Tensor]:
        numbers = torch.Generator().manual_seed(1000 * self.seen + rank)
        self.seen += 1
        x = torch.randn(32, 64, generator=numbers)
        return x, x[:, :16].argmax(dim=1)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--memory", default="/dev/shm/example-ddp")
    parser.add_argument("--disk", default=None, help="a directory for checkpoints")
    parser.add_argument("--fresh", action="store_true", help="may begin where there is no state")
    parser.add_argument("--die-at", type=int, default=-1, help="end this process at this step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    layers = [nn.Linear(64, 128), nn.Dropout(0.1), nn.GELU(), nn.Linear(128, 16)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=50)
    data = Data()
    objects = {"model": model, "optimizer": optimizer, "schedule": schedule, "data": data}
    snapshotter = Snapshotter(objects, args.memory, disk=args.disk)  # snapshots
    first = snapshotter.load(allow_fresh=args.fresh)  # snapshots
    if rank == 0:
        print(f"starts at step {first}", flush=True)
    for step in range(first, args.steps):
        if step == args.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = data.next(rank)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        snapshotter.step()  # snapshots
        if rank == 0:
            print(f"step {step} loss {loss.item():.9f}", flush=True)
    snapshotter.close(remove=True)  # snapshots
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
