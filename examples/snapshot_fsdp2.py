"""Snapshots in a plain FSDP2 loop: kill it, start it again (without --fresh, on any number of
processes), and it goes on from memory.

    torchrun --nproc-per-node 2 examples/snapshot_fsdp2.py --steps 200 --fresh

The lines that belong to the snapshots are marked.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast import Snapshotter  # snapshots


def make_model() -> nn.Module:
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
    model = nn.Sequential(*blocks, nn.Linear(64, 16))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """A function of the step, so a loop that starts again sees the same data."""
    numbers = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 64, generator=numbers)
    return x, x[:, :16].argmax(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--memory", default="/dev/shm/example-fsdp2")
    parser.add_argument("--disk", default=None, help="a directory for checkpoints")
    parser.add_argument("--fresh", action="store_true", help="may begin where there is no state")
    parser.add_argument("--die-at", type=int, default=-1, help="end this process at this step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    snapshotter = Snapshotter(  # snapshots
        {"model": model, "optimizer": optimizer}, args.memory, disk=args.disk
    )
    first = snapshotter.load(allow_fresh=args.fresh)  # snapshots
    if rank == 0:
        print(f"starts at step {first}", flush=True)
    for step in range(first, args.steps):
        if step == args.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch(step, rank)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        snapshotter.step()  # snapshots
        if rank == 0:
            print(f"step {step} loss {loss.item():.9f}", flush=True)
    if rank == 0:
        copied = [report.share_in_gaps for report in snapshotter.reports]
        print(f"in gaps: {sum(copied) / max(1, len(copied)):.0%} of {len(copied)} snapshots")
    snapshotter.close(remove=True)  # snapshots
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
