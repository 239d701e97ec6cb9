"""Shard groups and FSDP2's `fully_shard` over a mesh of two dimensions, one step at a time."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, fully_shard

from _engine import (
    OPTIMIZER,
    Chain,
    EngineSteps,
    Size,
    make_adam,
    make_data,
    make_units,
    measure,
)
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.plan import Reshard, Schedule

REPLICAS, SHARD = 2, 2
WORLD = REPLICAS * SHARD
MODES: dict[str, Reshard] = {"kept": "after_backward", "dropped": "after_forward"}
"""Gathered once a step, or for every pass."""

LONG = Size(
    LlamaShape(dim=256, num_layers=6, num_heads=8, num_kv_heads=4, hidden=768, vocab=2048),
    rows=2,
    length=128,
    micro_batches=8,
    rounds=20,
)
SHORT = replace(LONG, rounds=8)
WIDE = Size(
    LlamaShape(dim=512, num_layers=6, num_heads=8, num_kv_heads=8, hidden=1536, vocab=4096),
    rows=1,
    length=64,
    micro_batches=8,
    rounds=3,
)
"""For memory: far more parameters than activations."""


class OurShards(EngineSteps):
    def __init__(self, size: Size, rank: int, store: Any, mode: str, name: str) -> None:
        plan = regular_plan(
            llama_units(size.shape, size.rows * size.length),
            replicas=REPLICAS,
            shard=SHARD,
            micro_batches=size.micro_batches,
            schedule=Schedule(reshard=MODES[mode]),
        )
        super().__init__(size, rank, store, plan, name)


class FullyShard:
    """FSDP2: accumulate locally, scatter and reduce with the last micro-batch."""

    def __init__(self, size: Size, rank: int, mode: str) -> None:
        self._size, self._rank, self._data = size, rank, make_data(size)
        self._keeps = mode == "kept"
        mesh = init_device_mesh("cpu", (REPLICAS, SHARD), mesh_dim_names=("replica", "shard"))
        chain = Chain(make_units(size, range(size.shape.num_layers + 2)))
        for unit in chain.units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=not self._keeps)
        fully_shard(chain, mesh=mesh, reshard_after_forward=not self._keeps)
        self._chain = chain
        self._adam = make_adam(chain)

    def __call__(self, step: int) -> float:
        share = self._size.micro_batches // WORLD
        mine = range(self._rank * share, (self._rank + 1) * share)
        tokens = self._size.micro_batches * self._size.rows * self._size.length
        self._adam.zero_grad()
        total = torch.zeros(())
        for number in mine:
            self._say_whether_last(number == mine[-1])
            batch = self._data.micro_batch(step, number)
            loss: Tensor = self._chain(batch.tokens, batch.targets)
            torch.autograd.backward(loss * (WORLD / tokens))  # FSDP divides by the world's size
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self._chain.parameters(), OPTIMIZER.clip_norm, foreach=True)
        self._adam.step()
        dist.all_reduce(total)
        return float(total) / tokens

    def _say_whether_last(self, is_last: bool) -> None:
        assert isinstance(self._chain, FSDPModule)
        self._chain.set_requires_gradient_sync(is_last)
        if self._keeps:
            self._chain.set_reshard_after_backward(is_last)


def join(rank: int, port: int) -> Any:
    """This process as one of the world, on a core of its own where there are enough."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=PrefixStore("world", store), rank=rank, world_size=WORLD)
    return store


def time_steps(rank: int, port: int, mode: str, size: Size, results: Any) -> None:
    store = join(rank, port)
    contenders: dict[str, Callable[[int], float]] = {
        "ours": OurShards(size, rank, store, mode, "a"),
        "ours again": OurShards(size, rank, store, mode, "b"),
        "theirs": FullyShard(size, rank, mode),
    }
    results.send(measure(contenders, size.rounds))
    dist.barrier()
    dist.destroy_process_group()


def peak_memory(rank: int, port: int, mode: str, name: str, size: Size, results: Any) -> None:
    """Bytes above those of a process that has everything but the model."""
    store = join(rank, port)
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark begins anew
    before = memory("VmRSS")
    made: Callable[[int], float] = (
        OurShards(size, rank, store, mode, "m") if name == "ours" else FullyShard(size, rank, mode)
    )
    for step in range(size.rounds):
        made(step)
    results.send(memory("VmHWM") - before)
    dist.barrier()
    dist.destroy_process_group()


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(found.split()[1])
