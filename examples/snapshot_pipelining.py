"""Snapshots in a torch.distributed.pipelining loop: kill it, start it again without --fresh, and it
goes on.

    torchrun --nproc-per-node 2 examples/snapshot_pipelining.py --steps 200 --fresh

The lines that belong to the snapshots are marked. Copies run while a stage waits for its
neighbour's messages.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from holdfast import Snapshotter  # snapshots

MICRO_BATCHES = 4


def make_stage(rank: int, size: int) -> nn.Module:
    torch.manual_seed(1 + rank)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(64, 16 if rank == size - 1 else 64))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """A function of the step, so a loop that starts again sees the same data."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
    return x, x[:, :16].argmax(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--memory", default="/dev/shm/example-pipelining")
    parser.add_argument("--disk", default=None, help="a directory for checkpoints")
    parser.add_argument("--fresh", action="store_true", help="may begin where there is no state")
    parser.add_argument("--die-at", type=int, default=-1, help="end this process at this step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    module = make_stage(rank, size)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    snapshotter = Snapshotter(  # snapshots
        {"module": module, "optimizer": optimizer}, args.memory, disk=args.disk
    )
    first = snapshotter.load(allow_fresh=args.fresh)  # snapshots
    if rank == size - 1:
        print(f"starts at step {first}", flush=True)
    for step in range(first, args.steps):
        if step == args.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch(step)
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        snapshotter.step()  # snapshots
        if losses:
            print(f"step {step} loss {torch.stack(losses).mean().item():.9f}", flush=True)
    if rank == size - 1:
        copied = [report.share_in_gaps for report in snapshotter.reports]
        print(f"in gaps: {sum(copied) / max(1, len(copied)):.0%} of {len(copied)} snapshots")
    snapshotter.close(remove=True)  # snapshots
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
