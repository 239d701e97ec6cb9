"""A tensor group of real processes over gloo."""

import multiprocessing
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TIMEOUT_S = 45


class GlooGroup:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def all_reduce(self, tensor, op="sum"):
        dist.all_reduce(tensor, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)


def run_processes(size, work, folder: Path, *arguments):
    """`work(group, *arguments)` in `size` fresh processes; what they return, in rank order.

    `work` has to be importable, so it lives in a module that is no test file.
    """
    context = multiprocessing.get_context("spawn")
    members = [
        context.Process(target=_member, args=(rank, size, work, folder, arguments))
        for rank in range(size)
    ]
    for member in members:
        member.start()
    try:
        for member in members:
            member.join(TIMEOUT_S)
        codes = [member.exitcode for member in members]
    finally:
        for member in members:
            member.kill()
            member.join()
            member.close()
    assert codes == [0] * size, f"exit codes {codes}"
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _member(rank, size, work, folder, arguments):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        torch.save(work(GlooGroup(rank, size), *arguments), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
